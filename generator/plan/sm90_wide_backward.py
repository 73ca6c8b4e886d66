"""Variant -> plan of the sm90 family's backward for head sizes above 128."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..arch import Target
from ..errors import PlanError
from ..program import program_for
from ..variant import Variant
from .base import SmemBuffer, first_legal, is_ragged, legal, round_up, stack
from .sm90 import Product
from .sm90_alternatives import SECTION_HEADS
from .sm90_backward import Sm90BackwardPlan
from .sm90_tiles import PAGE_COLS, tile_bytes

_GROUPS = 2  # warpgroups that compute
_KEYS = 64  # of a thread block: the M of wgmma
_QUERIES = 64  # of a step
_OVERHEAD_REGISTERS = 28  # addresses, row statistics, rings: measured with ptxas


@dataclass(frozen=True, slots=True)
class ColumnShare:
    """The columns of a tile that one of the two warpgroups multiplies.

    A descriptor of wgmma steps from 64 columns to the next 64 by a distance of its own choice, so
    that a share is a page, or half of one, and a part of what lies behind the second page.

    Attributes:
        head: columns in the warpgroup's own page, or of the one page.
        tail: columns behind the second page; 0 where there are none.
    """

    head: int
    tail: int

    @property
    def width(self) -> int:
        """Columns in all, some of them behind the tile's last."""
        return self.head + self.tail


def share_of(head_dim: int) -> ColumnShare:
    """How two warpgroups share ``head_dim`` columns, as evenly as pages allow."""
    if head_dim <= PAGE_COLS:
        return ColumnShare(round_up(head_dim, 32) // 2, 0)
    behind = round_up(max(head_dim - 2 * PAGE_COLS, 0), 32)
    return ColumnShare(PAGE_COLS, behind // 2 if behind <= PAGE_COLS else PAGE_COLS)


@dataclass(frozen=True, kw_only=True)
class Sm90WideBackwardPlan(Sm90BackwardPlan):
    """Backward: two warpgroups share 64 keys, each with half of dK's, dV's and dQ's columns.

    Each scores half of a step's queries; shared memory takes P and dS to the other.

    Attributes:
        chained_products: whether dK's product follows dQ's without a wait, and dQ is added to
            global memory meanwhile; takes registers.
        own_dq: whether dQ has a kernel of its own, which scores a second time. The kernel that
            adds to dQ is bound by what the L2 cache adds up.
        apart: whether then one warpgroup sums up dK and the other dV, each from tiles of its own,
            with nothing to change hands.
    """

    chained_products: bool = True
    own_dq: bool = False
    apart: bool = False

    pins: ClassVar[tuple[str, ...]] = (
        *("num_stages", "chained_products", "own_dq", "apart"),
        *("head_sections", "chained_launches"),
    )

    @property
    def adds_in_order(self) -> bool:
        """Whether thread blocks add to dQ in a fixed order: the kernel of its own adds nothing."""
        return False

    @property
    def producer_registers(self) -> int:
        """Registers of a thread that doesn't compute: more where it tests tiles."""
        return 24 if self.program.tile_test is None else 40

    @property
    def last_flag(self) -> bool:
        """Whether a step says that it is the last one: not tried here."""
        return False

    @property
    def separate_dq(self) -> bool:
        """Whether dQ has a kernel of its own."""
        return self.own_dq

    @property
    def dq_stages_v(self) -> int:
        """Tiles of V in flight in dQ's kernel, beside two of K."""
        variant = self.variant
        tiles = 2 * tile_bytes(2 * _QUERIES, variant.head_dim)
        tiles += 2 * tile_bytes(2 * _QUERIES, variant.head_dim_v)
        return 2 if tiles + 1024 <= self.target.max_smem_bytes else 1

    @property
    def shares_keys(self) -> bool:
        """Whether the warpgroups share keys, each with half of the columns, not the reverse."""
        return True

    @property
    def consumer(self) -> str:
        """The template part of what computes."""
        kind = "apart" if self.apart else "wide"
        return f"sm90/backward_{kind}_consumer.cu.j2"

    @property
    def sums_apart(self) -> bool:
        """Whether one warpgroup sums up dK and the other dV."""
        return self.apart

    @property
    def share_qk(self) -> ColumnShare:
        """A warpgroup's columns of dK and dQ."""
        return share_of(self.variant.head_dim)

    @property
    def share_v(self) -> ColumnShare:
        """A warpgroup's columns of dV."""
        return share_of(self.variant.head_dim_v)

    @property
    def score_m(self) -> int:
        """Queries of a step that a warpgroup scores."""
        return self.tile_m if self.apart else self.tile_m // _GROUPS

    @property
    def padded_qk(self) -> int:
        """Columns of dQ as it is summed up."""
        return round_up(self.variant.head_dim, 16)

    @property
    def exchanges(self) -> int:
        """Places of P and dS: two, unless a step has another barrier that frees the one."""
        return 1 if self.variant.dropout else 2

    @property
    def products(self) -> tuple[Product, ...]:
        """Every width of wgmma that the kernel has."""
        variant = self.variant
        return (
            Product("wgmma_scores", self.score_m, False, False, "S^T and dP^T"),
            Product("wgmma_dv", self._sums(self.share_v, variant.head_dim_v), True, True, "dV"),
            Product("wgmma_dk", self._sums(self.share_qk, variant.head_dim), True, True, "dK"),
            *self._dq_products,
        )

    def _sums(self, share: ColumnShare, head_dim: int) -> int:
        """Columns of dK or dV that a warpgroup sums up."""
        return round_up(head_dim, 16) if self.apart else share.width

    @property
    def _dq_products(self) -> tuple[Product, ...]:
        if not self.own_dq:
            return (Product("wgmma_dq", self.share_qk.width, False, True, "dQ"),)
        return (
            Product("wgmma_rows", self.tile_n, False, False, "S and dP of dQ's kernel"),
            Product("wgmma_dq", round_up(self.variant.head_dim, 16), True, True, "dQ"),
        )

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """K and V for good, Q and dO in stages, P and dS to change hands, statistics, barriers."""
        variant, stages, places = self.variant, self.num_stages, self.exchanges
        exchanged = places * tile_bytes(self.tile_m, self.tile_n)
        of = f"of {places} steps" if places > 1 else "of a step"
        buffers = [
            ("k", tile_bytes(self.tile_n, variant.head_dim), "K; in the end dK, then dV"),
            ("v", tile_bytes(self.tile_n, variant.head_dim_v), "V"),
            ("q", stages * tile_bytes(self.tile_m, variant.head_dim), f"{stages} tiles of Q"),
            (
                "dout",
                stages * tile_bytes(self.tile_m, variant.head_dim_v),
                f"{stages} tiles of dO",
            ),
            *([] if self.apart else [("p", exchanged, f"P {of}"), ("ds", exchanged, f"dS {of}")]),
            ("lse", stages * self.tile_m * 4, f"{stages} tiles of lse"),
            ("delta", stages * self.tile_m * 4, f"{stages} tiles of delta"),
            ("steps", stages * self.step_bytes, "what each step is"),
        ]
        if variant.dropout:
            keep_bytes = 2 * self.tile_m // 16 * -(-self.tile_n // 32) * 128
            buffers.append(("keep", keep_bytes, "dropout's keep bits of two steps"))
        buffers.append(("barriers", (2 + 2 * stages) * 8, "mbarriers"))
        return stack(buffers, 16)

    @property
    def registers_estimate(self) -> int:
        """Accumulators of dK, dV and dQ, operands of dK beside dQ's, and the overhead."""
        columns = 2 * self.share_qk.width + self.share_v.width
        if self.own_dq:  # in that kernel, S, dP and dQ
            return self.padded_qk // 2 + self.tile_n + _OVERHEAD_REGISTERS - 4
        operands = self.tile_m // 4 if self.chained_products else self.tile_m // 8
        return columns // 2 + operands + _OVERHEAD_REGISTERS

    def _check_tiles(self) -> None:
        """Raise PlanError for tiles, or products in an order, that the kernel isn't written for."""
        if self.tile_m != _QUERIES:
            raise PlanError(
                f"plan: {self.name}: expected tile_m {_QUERIES} at head sizes above 128, got "
                f"{self.tile_m}."
            )
        if self.apart and (self.variant.dropout or not self.own_dq):
            raise PlanError(f"plan: {self.name}: expected own_dq and no dropout beside apart.")
        if self.variant.deterministic and not self.own_dq:
            raise PlanError(f"plan: {self.name}: expected own_dq for a deterministic variant.")


def plan(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Sm90WideBackwardPlan:
    """The shipped plan: the first legal candidate."""
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm90WideBackwardPlan]:
    """Every legal plan; on an H200 own_dq was 1.11 to 1.23 times as fast as adds (2026-12)."""
    program = program_for(variant)
    base = Sm90WideBackwardPlan(
        variant=variant,
        pass_name=pass_name,
        target=target,
        family=family,
        reason=reason,
        tile_m=_QUERIES,
        tile_n=_KEYS,
        num_warps=4 * _GROUPS,
    )
    ways = [(False, True, False), (False, True, True)]  # chained_products, own_dq, apart
    if not variant.deterministic:
        ways += [(True, False, False), (False, False, False)]
    return legal(
        replace(
            base,
            chained_products=products,
            own_dq=own_dq,
            apart=apart,
            head_sections=heads,
            chained_launches=launches,
        )
        for heads in ((SECTION_HEADS, 0) if is_ragged(variant) else (0,))
        for launches in ((True, False) if program.tile_test is None else (False,))
        for products, own_dq, apart in ways
    )
