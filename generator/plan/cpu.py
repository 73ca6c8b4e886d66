"""Variant -> plan of the cpu family: register block, tiles, packed rows, instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..arch import Target
from ..errors import PlanError
from ..variant import Variant
from .base import KernelPlan

CACHE_LINE_BYTES = 64  # of every x86-64 and most Arm cores
DROPOUT_BLOCK_QUERIES = 16  # architecture.md, "Semantics": one Philox call serves half a block row

_ISA_VECTOR_BYTES = {"x86-64-v3": 32, "x86-64-v4": 64, "native": 32}
"""`-march` values and their vector bytes: v3 is AVX2, v4 is AVX-512; native may pin 64."""
_ISA_REGISTERS = {32: 16, 64: 32}  # vector registers by vector bytes; Intel SDM vol. 1, 14.1, 15.2

_ELEMENT = {
    "fp16": ("Float16", 2),
    "bf16": ("Bfloat16", 2),
    "fp32": ("float", 4),
    "fp64": ("double", 8),
}
_CANDIDATE_TILES = ((96, 64), (48, 64), (192, 64), (96, 96), (96, 128), (192, 128))


@dataclass(frozen=True, kw_only=True)
class CpuPlan(KernelPlan):
    """The decisions of the cpu family.

    A task owns rows that lie on SIMD lanes and walks the other side in steps. In forward and
    in the backward's dq the rows are tile_m queries and a step is tile_n keys; in
    dk and dv the rows are dkv_tile_n keys and a step is dkv_tile_m queries.

    Attributes:
        isa: what `-march` names.
        vector_bytes: of a SIMD vector.
        block_rows: rows of the register block; head_dim is a multiple of it.
        block_vecs: vectors of the register block; a panel is so many vectors wide.
        dkv_tile_m: queries of a step in dk and dv; backward only.
        dkv_tile_n: keys of a task in dk and dv; backward only.
    """

    pins: ClassVar[tuple[str, ...]] = (
        "tile_m",
        "tile_n",
        "isa",
        "vector_bytes",
        "block_rows",
        "block_vecs",
        "dkv_tile_m",
        "dkv_tile_n",
    )

    isa: str = "x86-64-v3"
    vector_bytes: int = 32
    block_rows: int = 4
    block_vecs: int = 3
    dkv_tile_m: int = 64
    dkv_tile_n: int = 96

    @property
    def element_type(self) -> str:
        """C++ type of the elements of q, k, v and out."""
        return _ELEMENT[self.variant.dtype][0]

    @property
    def accumulator_dtype(self) -> str:
        """What everything between the inputs and the outputs is computed in."""
        return "fp64" if self.variant.dtype == "fp64" else "fp32"

    @property
    def accumulator_type(self) -> str:
        """C++ type of the accumulator."""
        return _ELEMENT[self.accumulator_dtype][0]

    @property
    def accumulator_bytes(self) -> int:
        """Size of the accumulator's type."""
        return _ELEMENT[self.accumulator_dtype][1]

    @property
    def panel_width(self) -> int:
        """Rows that lie side by side on lanes."""
        return self.block_vecs * self.vector_bytes // self.accumulator_bytes

    @property
    def stride_qk(self) -> int:
        """Distance between packed rows of q and k, in accumulators."""
        return self._stride(self.variant.head_dim)

    @property
    def stride_v(self) -> int:
        """Distance between packed rows of v and dout, in accumulators."""
        return self._stride(self.variant.head_dim_v)

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Flags of g++: IEEE infinities are needed, errno and traps are not."""
        return (
            "-std=c++17",
            "-O3",
            f"-march={self.isa}",
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-fno-trapping-math",
            "-fopenmp",
            "-fPIC",
            "-fvisibility=hidden",
            "-shared",
        )

    @property
    def scratch_bytes(self) -> int:
        """Working memory of a thread, about: what should stay in its second-level cache."""
        d, dv = self.variant.head_dim, self.variant.head_dim_v
        tiles = self.tile_n * (self.stride_qk + self.stride_v + self.panel_width)
        return (self.tile_m * (d + dv) + tiles) * self.accumulator_bytes

    def check(self) -> KernelPlan:
        """This plan, once it is known to be legal.

        Raises:
            PlanError: names the limit that does not hold and what to change.
        """
        self._check_isa()
        self._check_registers()
        rows = ("tile_m", "dkv_tile_n") if self.pass_name == "backward" else ("tile_m",)
        for name in rows:
            self._check_multiple(name, self.panel_width, "rows of a panel")
        if self.variant.dropout:
            keys = 256 // self.variant.dropout_bits
            self._check_multiple("tile_m", DROPOUT_BLOCK_QUERIES, "queries of a dropout block")
            self._check_multiple("dkv_tile_m", DROPOUT_BLOCK_QUERIES, "queries of a dropout block")
            self._check_multiple("tile_n", keys, "keys of a dropout block")
            self._check_multiple("dkv_tile_n", keys, "keys of a dropout block")
        for name in ("tile_n", "dkv_tile_m"):
            self._check_multiple(name, self.block_rows, "block_rows")
        return self

    def _check_isa(self) -> None:
        if self.isa not in _ISA_VECTOR_BYTES:
            raise PlanError(
                f"plan: {self.name}: isa: expected one of {', '.join(_ISA_VECTOR_BYTES)}, "
                f"got {self.isa!r}."
            )
        if self.vector_bytes not in _ISA_REGISTERS:
            raise PlanError(
                f"plan: {self.name}: vector_bytes: expected 32 or 64, got {self.vector_bytes}."
            )
        if self.isa == "x86-64-v3" and self.vector_bytes > _ISA_VECTOR_BYTES[self.isa]:
            raise PlanError(
                f"plan: {self.name}: vector_bytes: expected 32 with isa x86-64-v3, "
                f"got {self.vector_bytes}. Pin isa to x86-64-v4 or native."
            )

    def _check_registers(self) -> None:
        have = _ISA_REGISTERS[self.vector_bytes]
        need = self.block_rows * self.block_vecs + self.block_vecs + 1
        if need > have or min(self.block_rows, self.block_vecs) < 1:
            raise PlanError(
                f"plan: {self.name}: a register block of {self.block_rows}x{self.block_vecs} "
                f"needs {need} vector registers, {self.isa} has {have}. "
                "Lower block_rows or block_vecs."
            )
        if 8 % self.block_rows:
            raise PlanError(
                f"plan: {self.name}: block_rows: expected a divisor of 8, which divides every "
                f"head_dim, got {self.block_rows}."
            )

    def _check_multiple(self, name: str, step: int, what: str) -> None:
        value = getattr(self, name)
        if value < step or value % step:
            raise PlanError(
                f"plan: {self.name}: {name}: expected a multiple of {step} ({what}), got {value}. "
                f"Use {max(1, value // step) * step}."
            )

    def _stride(self, head_dim: int) -> int:
        """`head_dim` padded to an odd number of cache lines.

        Rows a power of two apart share few sets of the first-level cache, and a column of them
        evicts itself.
        """
        lines = -(-head_dim * self.accumulator_bytes // CACHE_LINE_BYTES)
        return (lines | 1) * CACHE_LINE_BYTES // self.accumulator_bytes


def plan(variant: Variant, pass_name: str, target: Target, family: str, reason: str) -> CpuPlan:
    """The plan that ships: AVX2, 4 x 3 register block, 96 rows a task, 64 rows a step."""
    return CpuPlan(
        variant=variant,
        pass_name=pass_name,
        target=target,
        family=family,
        reason=reason,
        tile_m=96,
        tile_n=64,
    )


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[CpuPlan]:
    """Every legal plan for the tuner to time, the shipped one first."""
    shipped = plan(variant, pass_name, target, family, reason)
    wide = replace(shipped, isa="x86-64-v4", vector_bytes=64, block_rows=8)
    for base in (shipped, wide):
        for tile_m, tile_n in _CANDIDATE_TILES:
            found = replace(
                base, tile_m=tile_m, tile_n=tile_n, dkv_tile_m=tile_n, dkv_tile_n=tile_m
            )
            try:
                found.check()
            except PlanError:
                continue
            yield found
