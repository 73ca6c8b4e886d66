"""What both passes' plans of the sm80 family decide: mma.sync m16n8k16, ldmatrix, cp.async."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import PlanError
from .base import ELEMENTS, KernelPlan, nvcc_flags, round_up

_DL_CODE = {"fp16": "kDLFloat", "bf16": "kDLBfloat"}
_ROW_PADDING = 8  # elements; see templates/device/tile.cuh
_ELEMENT_BYTES = 2
SMEM_ALIGNMENT = 128  # bytes, of each buffer
OVERHEAD_REGISTERS = 48  # addresses, row statistics, operands in flight: measured with ptxas


def tile_bytes(rows: int, cols: int) -> int:
    """Size of a tile in shared memory; see templates/device/tile.cuh."""
    return rows * (cols + _ROW_PADDING) * _ELEMENT_BYTES


@dataclass(frozen=True, kw_only=True)
class Sm80Plan(KernelPlan):
    """What both passes of the family decide.

    Attributes:
        num_warps: warps of a thread block.
        min_blocks: thread blocks that shall fit on a multiprocessor (bounds the registers).
    """

    num_warps: int
    min_blocks: int = 1

    pins: ClassVar[tuple[str, ...]] = ("tile_m", "tile_n", "num_warps", "min_blocks")
    keep_keys: ClassVar[int] = 32  # least keys of a tile with dropout

    @property
    def copy(self) -> str:
        """The header in templates/device/ that fills tiles."""
        return "copy_async"

    @property
    def padded_qk(self) -> int:
        """head_dim rounded up to the depth of a tensor-core product."""
        return round_up(self.variant.head_dim, 16)

    @property
    def padded_v(self) -> int:
        """head_dim_v rounded up likewise."""
        return round_up(self.variant.head_dim_v, 16)

    @property
    def element(self) -> str:
        """The element type in templates/device/element.cuh."""
        return ELEMENTS[self.variant.dtype]

    @property
    def dl_code(self) -> str:
        """The element type's DLPack code."""
        return _DL_CODE[self.variant.dtype]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Nvcc's flags: native code for the target and PTX for what comes after it."""
        arch = self.target.nvcc_arch.rstrip("a")
        return nvcc_flags(f"arch=compute_{arch},code=[sm_{arch},compute_{arch}]")

    @property
    def max_registers(self) -> int:
        """Registers that a thread may have when ``min_blocks`` blocks share a multiprocessor."""
        threads = 32 * self.num_warps * self.min_blocks
        return min(self.target.max_registers, self.target.registers_per_sm // threads // 8 * 8)

    def check(self) -> KernelPlan:
        """This plan, once tiles, registers and shared memory are known to be legal."""
        if self.num_warps < 1 or 32 * self.num_warps > 1024:
            raise PlanError(
                f"plan: {self.name}: expected 1 to 32 warps, got {self.num_warps}. Lower num_warps."
            )
        if self.variant.dropout and (self.tile_m % 16 or self.tile_n % self.keep_keys):
            raise PlanError(
                f"plan: {self.name}: dropout works on blocks of 16x{self.keep_keys}, got tile "
                f"{self.tile_m}x{self.tile_n}. Use a multiple."
            )
        # A multiprocessor has 1 KB more than a block may have, which each block costs.
        of_blocks = self.min_blocks * (self.smem_bytes + 1024)
        if self.min_blocks > 1 and of_blocks > self.target.max_smem_bytes + 1024:
            raise PlanError(
                f"plan: {self.name}: {self.min_blocks} block(s) of {self.smem_bytes} bytes of "
                f"shared memory don't fit a multiprocessor of {self.target.name}. Lower "
                "min_blocks, tile_n or num_stages."
            )
        if self.registers_estimate > self.max_registers:
            raise PlanError(
                f"plan: {self.name}: tile {self.tile_m}x{self.tile_n} needs about "
                f"{self.registers_estimate} registers a thread, {self.target.name} allows "
                f"{self.max_registers} with {self.min_blocks} block(s) of {self.num_warps} warps. "
                "Lower tile_m or tile_n, or raise num_warps."
            )
        return super().check()
