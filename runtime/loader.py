"""Artifact -> CompiledPass: the binary in this process, with its two functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..generator.errors import CacheError
from . import knobs
from .artifact import Artifact
from .build import BuildEvent, build, find
from .cache import Cache
from .devices import check_device
from .log import logger
from .unit import BuildRequest, prepare

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class CompiledPass:
    """One pass of a variant, ready to call; the arguments are those of host/attention_args.h.

    Attributes:
        artifact: the binary that it comes from.
        function: `forward` or `backward`.
        workspace: (batch, num_heads, num_heads_kv, seqlen_q, seqlen_k) -> bytes.
        module: the loaded library, which lives as long as this does.
    """

    artifact: Artifact
    function: Callable[..., Any]
    workspace: Callable[[int, int, int, int, int], int]
    module: object


_loaded: dict[Path, CompiledPass] = {}
_lock = threading.Lock()


def load_pass(
    request: BuildRequest,
    *,
    build_missing: bool = True,
    device: torch.device | None = None,
    cache: Cache | None = None,
) -> CompiledPass:
    """The compiled pass that ``request`` asks for, from the cache or built now.

    A binary is loaded once in a process. After a rebuild the new one has another path, so that
    the next call gives the new code.

    Args:
        request: what is wanted.
        build_missing: compile what the cache lacks, and log one line about it; where
            FLASHGEN_BUILD is ``never`` it isn't.
        device: check the plan and the driver against this very device.
        cache: default, the one that the environment names.

    Raises:
        CacheError: when it is missing and nothing is to be built, or its file can't be loaded.
        PlanError: when no plan fits, or ``device`` can't run it.
        CompileError: when the build fails.
        ToolchainError: when a compiler is missing, or the driver too old.
    """
    cache = cache or Cache.default()
    artifact = find(request, cache=cache)
    if artifact is None:
        if not build_missing or knobs.BUILD.get() == "never":
            raise CacheError(
                f"load: {request}: expected it in {_searched(cache)}, found none. "
                f"Build it with: flashgen build {request.variant.key} "
                f"--arch {request.target.name}" + _refusals(request, cache)
            )
        (artifact,) = build([request], cache=cache, progress=_log_build)
    if device is not None:
        check_device(artifact.manifest, device)
    return load_artifact(artifact)


def load_passes(
    requests: Sequence[BuildRequest], *, device: torch.device, cache: Cache | None = None
) -> list[CompiledPass]:
    """Several passes in the order of ``requests``; what the cache lacks is built together.

    Raises:
        FlashgenError: as `load_pass`.
    """
    if knobs.BUILD.get() == "never":
        return [load_pass(request, device=device, cache=cache) for request in requests]
    artifacts = build(requests, cache=cache, progress=_log_build)
    for artifact in artifacts:
        check_device(artifact.manifest, device)
    return [load_artifact(artifact) for artifact in artifacts]


def load_artifact(artifact: Artifact) -> CompiledPass:
    """``artifact`` in this process; the same object when it is loaded already.

    Raises:
        CacheError: when the dynamic linker refuses the file.
    """
    with _lock:
        if artifact.library not in _loaded:
            _loaded[artifact.library] = _load(artifact)
        return _loaded[artifact.library]


def _load(artifact: Artifact) -> CompiledPass:
    import tvm_ffi  # first: the binary takes its symbols from the library that this loads

    name = artifact.manifest.pass_name
    try:
        module = tvm_ffi.load_module(str(artifact.library))
        function, workspace = module[name], module[f"{name}_workspace"]
    except (RuntimeError, AttributeError) as error:
        raise CacheError(
            f"load: {artifact.library}: expected a library with {name} and {name}_workspace, got "
            f"{str(error).strip().splitlines()[-1]}. Build it again with: flashgen build --force "
            f"{artifact.manifest.key} --arch {artifact.manifest.target}"
        ) from error
    return CompiledPass(artifact, function, workspace, module)


def _log_build(event: BuildEvent) -> None:
    if event.artifact is not None:
        manifest = event.artifact.manifest
        logger().info(
            "%s %s %s for %s in %.1f s: %s",
            "another process built" if event.elsewhere else "built",
            manifest.key,
            manifest.pass_name,
            manifest.target,
            manifest.build_seconds,
            event.artifact.directory,
        )


def _refusals(request: BuildRequest, cache: Cache) -> str:
    if not cache.prebuilt:
        return ""
    return f" ({' '.join(cache.refusals(prepare(request, cache.template_cache)))})"


def _searched(cache: Cache) -> str:
    roots = [root for root in (cache.root, *cache.prebuilt) if root is not None]
    return " or ".join(str(root) for root in roots)
