"""A bundle's folder -> the prebuilt kernel that serves a unit, or one sentence why none does.

    <bundle>/bundle.json              what it is for and what it has; replaced in one step
    <bundle>/<target>/<name>-<unique>/  source, headers, library, manifest of one kernel
    <bundle>/specs/*.yaml             the users' specs that its kernels come from

Every path in it is relative, so the folder may be moved, and nothing is ever written to it but by
`flashgen bundle`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ..generator.errors import CacheError, FlashgenError
from ..generator.version import VERSION
from .artifact import Artifact, file_fault, read_artifact
from .manifest import Pointer
from .unit import Unit, binding_abi, prepare

BUNDLE_NAME = "bundle.json"
BUNDLE_LAYOUT = 1
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


class BundleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of a bundle.

    Attributes:
        key: the variant's key.
        pins: fields of the plan that tuning or a spec had set, so that the machine that loads it,
            which may know no tuning, can tell that the kernel is of its own templates.
        pointer: where it lies and what it was made from.
    """

    key: str
    pass_name: str
    target: str
    family: str
    pins: dict[str, Any]
    pointer: Pointer

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What a bundle has one of."""
        return self.target, self.key, self.pass_name, self.family


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What ``bundle.json`` says.

    Attributes:
        flashgen: the version that made the kernels, and alone can call them.
        binding_abi: the binding that they were linked with.
        machine: instruction set of the host code, such as ``x86_64``.
        glibc: the least C library that the host code needs, (major, minor).
        specs: names of the files in ``specs/``.
        entries: the kernels, by target, key and pass.
    """

    layout: int = BUNDLE_LAYOUT
    flashgen: str
    binding_abi: str
    machine: str
    glibc: tuple[int, int]
    specs: tuple[str, ...] = ()
    entries: tuple[BundleEntry, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """The artifact that serves a unit, or why there is none."""

    artifact: Artifact | None = None
    refusal: str = ""


def is_bundle(root: Path) -> bool:
    """Whether ``root`` is a bundle, sound or not."""
    return (root / BUNDLE_NAME).is_file()


def read_bundle(root: Path) -> Bundle:
    """What the bundle at ``root`` has, once it is known to fit this machine and flashgen.

    Raises:
        CacheError: when it is none, or doesn't fit: one sentence, and what to do.
    """
    try:
        data = (root / BUNDLE_NAME).read_bytes()
    except OSError as error:
        raise CacheError(
            f"prebuilt {root}: expected a folder made by `flashgen bundle`, got no {BUNDLE_NAME} "
            f"({error.strerror or error}). Correct the path."
        ) from None
    try:
        found = msgspec.json.decode(data, type=_Header)
        problem = _header_problem(found)
        bundle = None if problem else msgspec.json.decode(data, type=Bundle)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CacheError(
            f"prebuilt {root}: expected a {BUNDLE_NAME} of `flashgen bundle`, got one that can't "
            f"be read ({error}). Copy or make the bundle again."
        ) from None
    problem = problem or _machine_problem(bundle)
    if bundle is None or problem:
        raise CacheError(f"prebuilt {root}: expected {problem}")
    return bundle


def lookup(root: Path, unit: Unit) -> Artifact | None:
    """The sound kernel of the bundle at ``root`` that serves ``unit``, or None."""
    return _search(root, unit).artifact


def refusal(root: Path, unit: Unit) -> str:
    """Why the folder at ``root`` does not serve ``unit``: one sentence, and what to do."""
    if not is_bundle(root) and root.is_dir():
        return (
            f"prebuilt {root}: {unit.request}: expected it in this cache, got none. "
            f"{_how_to_bundle(root, unit)}"
        )
    return _search(root, unit).refusal


class _Header(msgspec.Struct, frozen=True):
    """What every layout of ``bundle.json`` has."""

    layout: int
    flashgen: str


def _header_problem(header: _Header) -> str:
    if header.layout == BUNDLE_LAYOUT and header.flashgen == VERSION:
        return ""
    return (
        f"kernels of flashgen {VERSION}, got those of flashgen {header.flashgen} (layout "
        f"{header.layout}). Bundle them again with this version, or install that one."
    )


def _machine_problem(bundle: Bundle | None) -> str:
    if bundle is None:
        return ""
    if bundle.binding_abi != binding_abi():
        return (
            f"kernels for the binding {binding_abi()}, got those for {bundle.binding_abi}. "
            "Bundle them again, or install that version of apache-tvm-ffi."
        )
    if bundle.machine != os.uname().machine:
        return (
            f"kernels for {os.uname().machine} hosts, got those for {bundle.machine}. "
            "Bundle them on such a machine."
        )
    if bundle.glibc > glibc_version():
        least, own = (".".join(map(str, v)) for v in (bundle.glibc, glibc_version()))
        return (
            f"kernels for glibc {own} or older, got those that need {least}. Bundle them on a "
            "machine as old as this one."
        )
    return ""


def _search(root: Path, unit: Unit) -> _Found:
    try:
        bundle = read_bundle(root)
        found = _search_in(bundle, root, unit)
        # a kernel that has just been replaced is gone, and the new index names the new one
        while found.artifact is None and (now := read_bundle(root)) != bundle:
            bundle = now
            found = _search_in(bundle, root, unit)
    except CacheError as error:
        return _Found(refusal=str(error))
    return found


def _search_in(bundle: Bundle, root: Path, unit: Unit) -> _Found:
    chosen, request = unit.plan, unit.request
    where = f"prebuilt {root}: {request}"
    of_key = [e for e in bundle.entries if e.key == chosen.variant.key]
    here = [
        e
        for e in of_key
        if (e.pass_name, e.target) == (chosen.pass_name, chosen.target.name)
        and request.family in (None, e.family)
    ]
    if not here:
        has = ", ".join(dict.fromkeys(f"{e.pass_name} {e.target}" for e in of_key))
        got = f"{has} alone" if has else f"none of its key among {len(bundle.entries)} kernels"
        asked = f"{request.family} code" if request.family and of_key else "it"
        return _Found(
            refusal=f"{where}: expected {asked} in the bundle, got {got}. "
            f"{_how_to_bundle(root, unit)}"
        )
    here.sort(key=lambda e: not _same_source(e, unit))
    entry = next((e for e in here if _same_source(e, unit) or _same_with_pins(e, unit)), None)
    if entry is None:
        return _Found(
            refusal=f"{where}: expected one of this flashgen's own templates, got one of others. "
            f"{_how_to_bundle(root, unit)}"
        )
    artifact = read_artifact(root, entry.pointer)
    fault: str | None = "a missing or altered manifest"
    if artifact is not None:
        fault = file_fault(artifact, artifact.manifest.library)
    if fault is None:
        return _Found(artifact)
    return _Found(
        refusal=f"{where}: expected a sound kernel in {root / entry.pointer.directory}, got "
        f"{fault}. Copy the bundle again."
    )


def _same_source(entry: BundleEntry, unit: Unit) -> bool:
    return entry.pointer.source_fingerprint == unit.source_fingerprint


def _same_with_pins(entry: BundleEntry, unit: Unit) -> bool:
    """Whether the entry is what ``unit`` becomes with the tuning that it was bundled with."""
    pins = tuple(entry.pins.items())
    try:
        request = replace(unit.request, family=entry.family, pins=pins)
        return _same_source(entry, prepare(request))
    except FlashgenError:  # pins or a family that this flashgen lacks
        return False


def _how_to_bundle(root: Path, unit: Unit) -> str:
    request = unit.request
    family = f" --family {request.family}" if request.family else ""
    return (
        f"Add it where there is a compiler: flashgen bundle {request.variant.key} "
        f"--arch {request.target.name}{family} -o {root}"
    )


def glibc_version() -> tuple[int, int]:
    """The C library of this machine, (major, minor); very new where it can't be told."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        text = ""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (999, 0)


def needed_glibc(library: bytes) -> tuple[int, int]:
    """The newest version of the C library that a shared object names a symbol of."""
    found = ((int(m[1]), int(m[2])) for m in _GLIBC.finditer(library))
    return max(found, default=(0, 0))
