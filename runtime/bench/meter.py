"""CUDA device -> its SM clock and power while it runs, through NVML."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch

_SM_CLOCK = 1  # NVML_CLOCK_SM, nvml.h
_LIBRARY = "libnvidia-ml.so.1"
_VERSION_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE

TENSOR_FLOPS_PER_CLOCK = {(7, 5): 1024, (8, 0): 2048, (9, 0): 4096, (10, 0): 8192}
"""Dense fp16 FLOPs of a multiprocessor in a clock, fp32 sums, by compute capability.

Source: datasheets of T4, A100, H100 and B200, peak / (multiprocessors * boost clock). Capabilities
whose products differ (8.6, 8.9, 12.0: half of it on GeForce) have no entry.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a meter shows at one moment; None for what it can't tell."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None


class Meter:
    """Reads one device; on the CPU, or where NVML is missing, every reading is empty."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> Reading:
        """The clock now and the power of the last moments."""
        if self._handle is None:
            return Reading()
        clock = self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK)
        power = self._ask("nvmlDeviceGetPowerUsage")
        return Reading(clock, None if power is None else power / 1000)

    @property
    def power_limit_w(self) -> float | None:
        """The power that the device is held to."""
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return None if limit is None else limit / 1000

    @property
    def driver_version(self) -> str | None:
        """The NVIDIA driver's version."""
        text = ctypes.create_string_buffer(_VERSION_BYTES)
        if self._nvml is None or self._nvml.nvmlSystemGetDriverVersion(text, _VERSION_BYTES):
            return None
        return text.value.decode()

    def peak_flops(self, sm_clock_mhz: float) -> float | None:
        """FLOP/s of the tensor cores at that clock; None where their rate isn't known."""
        if self._device.type != "cuda":
            return None
        capability = torch.cuda.get_device_capability(self._device)
        per_clock = TENSOR_FLOPS_PER_CLOCK.get(capability)
        count = torch.cuda.get_device_properties(self._device).multi_processor_count
        return None if per_clock is None else per_clock * count * sm_clock_mhz * 1e6

    @cached_property
    def _nvml(self) -> ctypes.CDLL | None:
        if self._device.type != "cuda":
            return None
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return None
        return library if library.nvmlInit_v2() == 0 else None

    @cached_property
    def _handle(self) -> ctypes.c_void_p | None:
        if self._nvml is None:
            return None
        # by UUID: CUDA_VISIBLE_DEVICES changes torch's numbers, not NVML's
        uuid = f"GPU-{torch.cuda.get_device_properties(self._device).uuid}"
        handle = ctypes.c_void_p()
        failed = self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        return None if failed else handle

    def _ask(self, function: str, *arguments: int) -> int | None:
        if self._nvml is None or self._handle is None:
            return None
        value = ctypes.c_uint()
        failed = getattr(self._nvml, function)(self._handle, *arguments, ctypes.byref(value))
        return None if failed else value.value
