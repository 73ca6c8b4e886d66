"""Variant -> plan of the sm90 family's backward: wgmma, TMA, warp specialisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..arch import Target
from ..errors import PlanError
from ..program import Program, program_for
from ..variant import Variant
from . import sm80_base
from .base import (
    KernelPlan,
    SmemBuffer,
    first_legal,
    has_wide_gradient,
    is_ragged,
    legal,
    native_flags,
    round_up,
    stack,
)
from .sm80_backward import Sm80BackwardPlan
from .sm90 import MAP_TYPE, Product
from .sm90_alternatives import SECTION_HEADS, alternatives, persistent
from .sm90_tiles import PAGE_COLS, tile_bytes

_GROUP_KEYS = 64  # keys of a warpgroup: the M of wgmma
_GROUPS = 2  # warpgroups that compute
_ELEMENT_BYTES = 2
_OVERHEAD_REGISTERS = 32  # addresses, row statistics, rings: measured with ptxas


@dataclass(frozen=True, kw_only=True)
class Sm90BackwardPlan(Sm80BackwardPlan):
    """Backward: a warp loads, two warpgroups own 64 keys each and walk the queries.

    Attributes:
        head_sections: heads, a power of two at most, whose thread blocks are dealt out together,
            longest first; 0 for head by head.
        chained_launches: whether a kernel starts while the one before it ends.
        early_exponentials: whether exponentials are taken while dP's product runs.
        short_addresses: whether a lane adds to dQ at one address and offsets of it.
        persistent_blocks: whether a multiprocessor's one thread block goes from tile of keys to
            tile of keys, whose K and V come while results of the one before are written.
        early_conversion: whether warps that would wait convert dQ of heads that are done, instead
            of a kernel of its own.
    """

    head_sections: int = 0
    chained_launches: bool = False
    early_exponentials: bool = False
    short_addresses: bool = False
    persistent_blocks: bool = False
    early_conversion: bool = False

    pins: ClassVar[tuple[str, ...]] = (
        *("tile_m", "num_stages"),
        *("head_sections", "chained_launches", "early_exponentials"),
        *("short_addresses", "persistent_blocks", "early_conversion"),
    )

    @property
    def producer_registers(self) -> int:
        """Registers of a thread that doesn't compute, which are fewer than it starts with."""
        if self.program.tile_test is not None:  # the work of the warp that loads
            return 40 if self.variant.head_dim > PAGE_COLS else 72
        other_work = self.adds_in_order or self.converts_early
        return 40 if other_work else 24

    @property
    def consumer_registers(self) -> int:
        """Registers of a thread that computes: what the others leave, in eights."""
        return {24: 240, 40: 232, 72: 216}[self.producer_registers]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Nvcc's flags: sm_90a has no PTX for what comes after it."""
        return native_flags(self.target)

    @property
    def main_launch(self) -> str:
        """The template part that launches the main kernel."""
        return "sm90/backward_launch.cu.j2"

    @property
    def shares_keys(self) -> bool:
        """Whether the warpgroups share keys, each with half of the columns, not the reverse."""
        return False

    @property
    def last_flag(self) -> bool:
        """Whether a step says that it is the last one, or else what follows it does.

        For that the next step's products would wait: 2 to 8 % on an H200 (2026-12).
        """
        return True

    @property
    def sums_apart(self) -> bool:
        """Whether one warpgroup sums up dK and the other dV."""
        return False

    @property
    def consumer(self) -> str:
        """The template part of what computes."""
        return "sm90/backward_consumer.cu.j2"

    @property
    def score_m(self) -> int:
        """Queries of a step that a warpgroup scores."""
        return self.tile_m

    @property
    def tensor_map_type(self) -> str:
        """The element type of a tensor map."""
        return MAP_TYPE[self.variant.dtype]

    @property
    def chained(self) -> bool:
        """Whether a kernel starts while the one before it ends."""
        return self.chained_launches

    @property
    def persistent(self) -> bool:
        """Whether a multiprocessor's one thread block goes from tile of keys to tile of keys."""
        return self.persistent_blocks

    @property
    def converts_early(self) -> bool:
        """Whether the main kernel converts dQ of heads that are done."""
        return self.early_conversion

    @property
    def sections(self) -> bool:
        """Whether thread blocks of several heads are dealt out together."""
        return self.head_sections > 0

    @property
    def convert(self) -> str:
        """The template part that converts dQ."""
        return "sm90/backward_convert.cu.j2" if self.transposes_dq else super().convert

    @property
    def adds_in_order(self) -> bool:
        """Whether thread blocks add to dQ one after another, in an order that never changes."""
        return self.variant.deterministic

    @property
    def separate_dq(self) -> bool:
        """Whether a kernel of its own computes dQ."""
        return False

    @property
    def dq_places(self) -> int:
        """Steps whose part of dQ may wait in shared memory for its turn."""
        if not self.adds_in_order:
            return 0
        last = stack(self._buffers(2), 16)[-1]
        return 2 if last.offset_bytes + last.size_bytes <= self.target.max_smem_bytes else 1

    @property
    def transposes_dq(self) -> bool:
        """Whether dQ^T is computed, which leaves the number of queries free."""
        return self.tile_m not in (_GROUP_KEYS, 2 * _GROUP_KEYS)

    @property
    def splits_dq_columns(self) -> bool:
        """Whether the warpgroups share dQ's product by columns, not by queries."""
        return self.tile_m != 2 * _GROUP_KEYS

    @property
    def dq_columns(self) -> int:
        """Columns of dQ that a warpgroup computes."""
        if not self.splits_dq_columns:
            return round_up(self.variant.head_dim, 16)
        if self.variant.head_dim > PAGE_COLS:
            return PAGE_COLS  # whole pages
        return round_up(self.variant.head_dim, 16 * _GROUPS) // _GROUPS

    @property
    def dq_columns_bytes(self) -> int:
        """Bytes of shared memory from one warpgroup's columns of K to the other's."""
        if self.dq_columns == PAGE_COLS:
            return tile_bytes(self.tile_n, PAGE_COLS)
        return self.dq_columns * _ELEMENT_BYTES

    @property
    def padded_qk(self) -> int:
        """Columns of dQ as it is summed up."""
        return self.dq_columns * (_GROUPS if self.splits_dq_columns else 1)

    @property
    def products(self) -> tuple[Product, ...]:
        """Every width of wgmma that the kernel has."""
        return (
            Product("wgmma_scores", self.tile_m, False, False, "S^T and dP^T"),
            Product("wgmma_dv", round_up(self.variant.head_dim_v, 16), True, True, "dV"),
            Product("wgmma_dk", round_up(self.variant.head_dim, 16), True, True, "dK"),
            Product("wgmma_dq", self.tile_m, False, False, "dQ^T", a_transposed=True)
            if self.transposes_dq
            else Product("wgmma_dq", self.dq_columns, False, True, "dQ"),
        )

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """K and V for good, Q and dO in stages, dS twice, row statistics, barriers."""
        return stack(self._buffers(self.dq_places), 16)

    def _buffers(self, dq_places: int) -> list[tuple[str, int, str]]:
        variant, stages = self.variant, self.num_stages
        buffers = [
            ("k", tile_bytes(self.tile_n, variant.head_dim), "K; in the end dK, then dV"),
            ("v", tile_bytes(self.tile_n, variant.head_dim_v), "V"),
            ("q", stages * tile_bytes(self.tile_m, variant.head_dim), f"{stages} tiles of Q"),
            (
                "dout",
                stages * tile_bytes(self.tile_m, variant.head_dim_v),
                f"{stages} tiles of dO",
            ),
            ("ds", 2 * tile_bytes(self.tile_m, self.tile_n), "dS of two steps"),
            ("lse", stages * self.tile_m * 4, f"{stages} tiles of lse"),
            ("delta", stages * self.tile_m * 4, f"{stages} tiles of delta"),
            ("steps", stages * self.step_bytes, "what each step is"),
        ]
        if variant.dropout:
            keep_bytes = 2 * self.tile_m // 16 * -(-self.tile_n // 32) * 128
            buffers.append(("keep", keep_bytes, "dropout's keep bits of two steps"))
        if dq_places:
            dq_bytes = dq_places * self.tile_m * self.padded_qk * 4
            buffers.append(("dq", dq_bytes, f"dQ of {dq_places} steps, to be added"))
        if self.persistent:
            buffers.append(("work", 8, "the tile of keys"))
        buffers.append(("barriers", self._count_barriers(dq_places) * 8, "mbarriers"))
        return buffers

    def _count_barriers(self, dq_places: int) -> int:
        return 2 + 2 * self.num_stages + 2 * dq_places + self.persistent

    @property
    def num_barriers(self) -> int:
        """Mbarriers of a thread block."""
        return self._count_barriers(self.dq_places)

    @property
    def step_bytes(self) -> int:
        """Size of a Step."""
        return 16 if self.variant.layout == "varlen" else 12

    @property
    def registers_estimate(self) -> int:
        """Accumulators of dK, dV, S and dP, and the overhead."""
        columns = self.variant.head_dim + self.variant.head_dim_v
        return columns // 2 + self.tile_m + _OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once tiles, registers and shared memory are known to be legal."""
        self._check_tiles()
        if self.early_conversion and not self._can_convert_early:
            raise PlanError(
                f"plan: {self.name}: expected early_conversion with persistent_blocks alone, and "
                "not where sequences are packed, dQ is summed in order or transposed (tile_m 32)."
            )
        if self.registers_estimate > self.consumer_registers:
            raise PlanError(
                f"plan: {self.name}: tile {self.tile_m}x{self.tile_n} needs about "
                f"{self.registers_estimate} registers a thread, {_GROUPS} warpgroups have "
                f"{self.consumer_registers}."
            )
        end = sum(
            round_up(sm80_base.tile_bytes(self.tile_n, round_up(head_dim, 16)), 128)
            for head_dim in (self.variant.head_dim, self.variant.head_dim_v)
        )
        lse = next(buffer for buffer in self.smem if buffer.name == "lse")
        if end > lse.offset_bytes:
            raise PlanError(f"plan: {self.name}: dK and dV need {end} bytes at the end.")
        return KernelPlan.check(self)

    @property
    def _can_convert_early(self) -> bool:
        packed = self.variant.layout == "varlen"
        return self.persistent and not (packed or self.adds_in_order or self.transposes_dq)

    def _check_tiles(self) -> None:
        """Raise PlanError for tiles that the kernel isn't written for."""
        rows = (64, 128) if self.variant.head_dim <= PAGE_COLS else (32, 64)
        if self.tile_m not in rows:
            raise PlanError(
                f"plan: {self.name}: expected tile_m {' or '.join(map(str, rows))} at head_dim "
                f"{self.variant.head_dim}, got {self.tile_m}."
            )


def missing(variant: Variant, asked: bool = False) -> str:
    """What of ``variant`` this family's backward lacks, in words; empty where it has all.

    Args:
        variant: the function.
        asked: whether somebody asked for this family. Then what is slower than family
            sm80, or what spills, is offered too; it is never the default.
    """
    program = program_for(variant)
    columns = max(variant.head_dim, variant.head_dim_v)
    unwritten = {
        "gradients of captures at head sizes above 128": bool(program.gradients) and columns > 128,
    }
    withheld = {
        # On an H200 18.8 TFLOP/s where family sm80 has 35 (pair-bias; 2026-12).
        "gradients of captures of three dimensions at each element": has_wide_gradient(program),
        "causal masks with tests of tiles, beside scores or captures of two dimensions, "
        "above 64 columns": columns > 64
        and bool(variant.causal)
        and program.tile_test is not None
        and _reads_much(program),  # 12 and 64 bytes spill at d128
    }
    lacks = unwritten if asked else unwritten | withheld
    return next((what for what, lacking in lacks.items() if lacking), "")


def _reads_much(program: Program) -> bool:
    wide = any(len(capture.dims) > 1 for capture in program.captures)
    return bool(program.captures) and (wide or program.score is not None)


def plan(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Sm90BackwardPlan:
    """The shipped plan: the first legal candidate."""
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm90BackwardPlan]:
    """Every legal plan: what ships, then what no GPU has timed against it, best hoped for first."""
    program = program_for(variant)
    busy = program.score is not None or program.tile_test is not None or variant.dropout > 0
    plain = not busy and variant.layout != "varlen"
    large = variant.head_dim > PAGE_COLS
    base = Sm90BackwardPlan(
        variant=variant,
        pass_name=pass_name,
        target=target,
        family=family,
        reason=reason,
        tile_m=64,
        tile_n=_GROUPS * _GROUP_KEYS,
        num_warps=4 * _GROUPS,
    )
    shapes = [(128, 2), (64, 2), (64, 1)][busy or large :]
    crowded = program.score_needed or base.sums_over_keys or variant.dropout
    if large and program.gradients and crowded:
        shapes = [(32, 2)]  # more spill
    first = next(legal(replace(base, tile_m=m, num_stages=n) for m, n in shapes), None)
    if first is None:
        return
    ragged = is_ragged(variant)
    small = plain and not large
    shipped = replace(
        first,
        head_sections=SECTION_HEADS if ragged else 0,
        chained_launches=program.tile_test is None,  # not timed beside tile tests
        early_exponentials=small,
        short_addresses=small,
    )
    best = [*persistent(shipped), shipped, first]
    yield from best
    tiles = replace(first, short_addresses=not busy)  # where registers are left
    others = alternatives(tiles, ragged or (first.adds_in_order and plain), small)
    tried = (*persistent(shipped, faster=False), *others)
    yield from legal(other for other in tried if other not in best)
