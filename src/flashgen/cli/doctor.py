"""`flashgen doctor`: what this machine can build and run, and what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from ..generator.arch import TARGETS
from ..generator.errors import CacheError, FlashgenError, TargetError, ToolchainError
from ..generator.version import VERSION
from ..runtime import cache_ops, knobs, paths
from ..runtime.driver import driver_cuda_version, driver_problem
from ..runtime.jobs import default_jobs
from ..runtime.toolchain import Compiler, find_host_compiler, find_nvcc, require_nvcc_for
from .exits import CHECK_FAILED
from .options import json_option, print_json

if TYPE_CHECKING:
    import torch

GOOD, NOTE, BAD = "ok", "note", "BAD"
REQUIRED = ("apache-tvm-ffi", "ninja", "torch")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: "ok", "note" (something can't be done here) or "BAD"."""

    state: str
    subject: str
    text: str


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say what this machine can build and run, and what to install for the rest.

    Exits with 1 when nothing can be built or run here; a missing GPU or CUDA compiler alone is
    a note, since kernels for cpu, and prebuilt ones, do without.

    \b
    Example:
      flashgen doctor --json      for a bug report
    """
    findings = [*_programs(), *_packages(), _cache(), *_prebuilt(), *_devices()]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(f"{finding.state:4s}  {finding.subject:14s}  {finding.text}")
    if any(finding.state == BAD for finding in findings):
        raise click.exceptions.Exit(CHECK_FAILED)


def _programs() -> Iterator[Finding]:
    yield Finding(GOOD, "flashgen", f"{VERSION}, Python {platform.python_version()}")
    yield _compiler("g++", NOTE if knobs.PREBUILT.is_set else BAD, find_host_compiler)
    nvcc = _compiler("nvcc", NOTE, find_nvcc)
    yield nvcc
    if nvcc.state == GOOD:
        yield Finding(GOOD, "nvcc targets", _targets(find_nvcc()))
    yield Finding(GOOD, "jobs", f"{default_jobs()} compilers at once")


def _compiler(subject: str, otherwise: str, find: Callable[[], Compiler]) -> Finding:
    try:
        found = find()
    except ToolchainError as error:
        return Finding(otherwise, subject, str(error))
    return Finding(GOOD, subject, f"{found.version}, {found.path} (from {found.origin})")


def _targets(nvcc: Compiler) -> str:
    """The names of the targets that ``nvcc`` is new enough for."""
    names = []
    for target in TARGETS.values():
        try:
            require_nvcc_for(target, nvcc)
        except ToolchainError:
            continue
        if not target.is_cpu:
            names.append(target.name)
    return " ".join(names)


def _packages() -> Iterator[Finding]:
    for name in REQUIRED:
        try:
            yield Finding(GOOD, name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(BAD, name, f"not installed. Install it with: pip install {name}")


def _cache() -> Finding:
    try:
        root = paths.cache_root()
    except FlashgenError as error:
        return Finding(BAD, "cache", str(error))
    nearest = next(path for path in (root, *root.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return Finding(GOOD, "cache", f"{root}{'' if root.exists() else ' (not made yet)'}")
    except OSError as error:
        remedy = f"Set {knobs.CACHE_DIR.name} to a directory that can be written."
        state = NOTE if knobs.PREBUILT.is_set else BAD
        return Finding(state, "cache", f"{root}: {os.strerror(error.errno or 0)}. {remedy}")


def _prebuilt() -> Iterator[Finding]:
    for root in paths.prebuilt_roots():
        try:
            kernels = [entry.artifact.manifest for entry in cache_ops.entries(root)]
        except CacheError as error:
            yield Finding(BAD, "prebuilt", str(error))
            continue
        targets = ", ".join(dict.fromkeys(kernel.target for kernel in kernels))
        state = GOOD if kernels else BAD
        yield Finding(state, "prebuilt", f"{root}: {len(kernels)} kernels for {targets or 'none'}")


def _devices() -> Iterator[Finding]:
    driver = driver_cuda_version()
    if driver is None:
        yield Finding(NOTE, "driver", "no NVIDIA driver: kernels run on cpu")
    else:
        yield Finding(GOOD, "driver", f"supports CUDA {'.'.join(map(str, driver))}")
    import torch

    if driver is not None and not torch.cuda.is_available():
        yield Finding(
            NOTE, "torch", "sees no GPU. Install a CUDA build of torch to run kernels on one."
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        yield _device(torch.device("cuda", index), driver)


def _device(device: torch.device, driver: tuple[int, int] | None) -> Finding:
    import torch

    from ..runtime.devices import target_of

    subject = str(device)
    name = torch.cuda.get_device_name(device)
    capability = torch.cuda.get_device_capability(device)
    try:
        target = target_of(device)
    except TargetError as error:
        return Finding(NOTE, subject, f"{name}: {error}")
    try:
        toolkit = find_nvcc().version_tuple
    except ToolchainError:
        toolkit = ()
    problem = driver_problem(toolkit, driver, target, capability)
    if problem:
        return Finding(BAD, subject, f"{name}, {target.name}: {problem}")
    return Finding(GOOD, subject, f"{name}, target {target.name}")
