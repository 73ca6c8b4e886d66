"""torch.device -> Target, and whether a binary can run on the very device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..generator.arch import TARGETS, Target, target_for_capability
from ..generator.errors import ArgumentError, PlanError, ToolchainError
from .driver import driver_cuda_version, driver_problem
from .manifest import Manifest
from .unit import cpu_features

if TYPE_CHECKING:
    import torch

X86_64_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
"""What /proc/cpuinfo calls the main additions of the level; Source: x86-64 psABI, table 3.1."""
X86_64_V4 = X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVELS = {
    "-march=x86-64-v3": (X86_64_V3, "from 2013 or later (Haswell, Zen)"),
    "-march=x86-64-v4": (X86_64_V4, "with AVX-512 (Skylake-SP, Zen 4)"),
}
"""What a level needs, and which CPUs have it."""


def best_device() -> torch.device:
    """The current CUDA device where there is one that flashgen has a target for, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def device_named(device: torch.device | str | None) -> torch.device:
    """The device that ``device`` spells; the best one for None.

    Raises:
        ArgumentError: when it spells none.
    """
    import torch

    if device is None:
        return best_device()
    try:
        if isinstance(device, str | torch.device):
            return torch.device(device)
    except RuntimeError:  # torch's own has no word on what to do
        pass
    raise ArgumentError(
        f"device: expected cpu, cuda, cuda:N or a torch.device, got {device!r:.40}. "
        "Leave it out for this machine's best."
    )


def native_targets() -> tuple[Target, ...]:
    """The target of every CUDA device of this machine, or cpu where there is none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = (target_of(torch.device("cuda", index)) for index in range(count))
    return tuple(dict.fromkeys(found)) or (TARGETS["cpu"],)


def target_of(device: torch.device) -> Target:
    """The highest target of the device's own major version that is not above it.

    Raises:
        TargetError: when the GPU's major version has no target.
        ToolchainError: when the device is neither a CPU nor a CUDA GPU.
    """
    if device.type == "cpu":
        return TARGETS["cpu"]
    return target_for_capability(*_capability(device))


def check_device(manifest: Manifest, device: torch.device) -> None:
    """Raise unless the binary of ``manifest`` can run on ``device``.

    Code for sm_80 loads on 8.6 and 8.9 too, so what a plan takes of the hardware is checked
    against the very device and not its target alone.

    Raises:
        PlanError: when the plan needs more shared memory than the device has, or the binary
            another kind of device; names both.
        ToolchainError: when the driver is older than what made the binary, or the CPU lacks
            instructions that it uses.
    """
    target = TARGETS[manifest.target]
    where = f"load: {manifest.key} {manifest.pass_name}"
    if target.is_cpu != (device.type == "cpu"):
        raise PlanError(
            f"{where}: expected a device for target {target.name}, got {device}. "
            "Load the kernel for that device."
        )
    if target.is_cpu:
        _check_cpu(manifest, where)
        return
    capability = _capability(device)
    if capability < target.capability:
        raise PlanError(
            f"{where}: target {target.name} needs compute capability "
            f"{'.'.join(map(str, target.capability))}, {device} has "
            f"{'.'.join(map(str, capability))}. Build for the device's own target."
        )
    limit = _smem_limit(device)
    if manifest.smem_bytes > limit:
        raise PlanError(
            f"{where}: the plan for {target.name} needs {manifest.smem_bytes} bytes of shared "
            f"memory, {device} allows {limit}. Build for the device's own target."
        )
    compiler = next((c for c in manifest.compilers if c.name == "nvcc"), None)
    toolkit = tuple(int(part) for part in compiler.version.split(".")[:2]) if compiler else ()
    problem = driver_problem(toolkit, driver_cuda_version(), target, capability)
    if problem:
        raise ToolchainError(f"{where}: {problem}")


def _check_cpu(manifest: Manifest, where: str) -> None:
    features = cpu_features()
    for flag, (needed, cpus) in _LEVELS.items():
        lacking = sorted(needed - features) if features and flag in manifest.flags else []
        if lacking:
            raise ToolchainError(
                f"{where}: the binary is for {flag.removeprefix('-march=')}, this CPU lacks "
                f"{', '.join(lacking)}. Run it on a CPU {cpus}."
            )


def _capability(device: torch.device) -> tuple[int, int]:
    import torch

    if device.type != "cuda":
        raise ToolchainError(f"device: expected cpu or cuda, got {device}. Move the tensors there.")
    if not torch.cuda.is_available():
        raise ToolchainError(
            f"device: expected a CUDA device for {device}, found none. Use the CPU, or install a "
            "CUDA build of torch and the NVIDIA driver."
        )
    return torch.cuda.get_device_capability(device)


def _smem_limit(device: torch.device) -> int:
    import torch

    properties: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the field
    return int(properties.shared_memory_per_block_optin)
