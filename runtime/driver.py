"""CUDA driver + toolkit -> whether the driver can load what the toolkit made."""

from __future__ import annotations

import ctypes
from functools import cache

from ..generator.arch import Target


@cache
def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA version that the installed driver supports; None without a driver."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int(0)
        if libcuda.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value <= 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def driver_problem(
    toolkit: tuple[int, ...],
    driver: tuple[int, int] | None,
    target: Target,
    capability: tuple[int, int] | None = None,
) -> str | None:
    """Why ``driver`` can't load a binary for ``target``; None where it can.

    A driver loads machine code of its own major version, whatever the minor one, but PTX only
    from a toolkit that is not newer than itself. PTX is needed where the device's major version
    is not the target's. Source: CUDA Compatibility, minor version compatibility.

    Args:
        toolkit: version of the nvcc that made the binary.
        driver: what `driver_cuda_version()` gives.
        target: what the binary was built for.
        capability: the device's compute capability; None for a device of the target's own kind.
    """
    if target.is_cpu or driver is None or not toolkit:
        return None
    made_by, can_do = ".".join(map(str, toolkit[:2])), ".".join(map(str, driver))
    if driver[0] < toolkit[0]:
        return (
            f"driver: expected one for CUDA {toolkit[0]}.0 or newer, since nvcc {made_by} made "
            f"the kernel, got one for CUDA {can_do}. Update the NVIDIA driver."
        )
    needs_ptx = capability is not None and capability[0] != target.capability[0]
    if needs_ptx and driver < tuple(toolkit[:2]):
        return (
            f"driver: expected one for CUDA {made_by} or newer to load PTX of that toolkit, got "
            f"one for CUDA {can_do}. Update the NVIDIA driver, or build for the device's own "
            "target."
        )
    return None
