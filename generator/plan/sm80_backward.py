"""Backward plans of the sm80 family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..errors import PlanError
from ..ir import Expr, Load, Name, walk
from ..program import Program, ProgramCapture, TileBound, program_for
from ..variant import Variant
from .base import KernelPlan, SmemBuffer, stack
from .sm80_base import OVERHEAD_REGISTERS, SMEM_ALIGNMENT, Sm80Plan, tile_bytes


def _product(dims: Sequence[str | int]) -> str:
    """How many elements ``dims`` make, in C++ over the WorkspaceSizes ``s``."""
    fields = {"total_q": "seqlen_q", "total_k": "seqlen_k"}
    factors = [d if isinstance(d, int) else f"s.{fields.get(d, d)}" for d in dims]
    return " * ".join(map(str, ("int64_t{1}", *factors)))


def walks_tiles(program: Program) -> bool:
    """Whether tiles of queries are classified one by one, not bounds of one loop."""
    return program.tile_test is not None or any(
        bound is not None and not _same_for_all_heads(bound)
        for bound in (program.band.lower, program.band.upper)
    )


def _same_for_all_heads(expr: Expr) -> bool:
    return not any(
        isinstance(node, Load) or (isinstance(node, Name) and node.id in ("h", "h_kv"))
        for node in walk(expr)
    )


@dataclass(frozen=True, kw_only=True)
class Sm80BackwardPlan(Sm80Plan):
    """Backward: a thread block owns keys, warps are stacked on them, and walks the queries.

    Attributes:
        key_atoms: blocks of 16 keys of a warp.
        head_splits: warps that share keys, each with that part of dK's and dV's columns; each
            scores that part of the queries, and shared memory takes P and dS to the others.
        score_splits: parts of its queries that a warp scores one after another.
        num_stages: tiles of Q and dO in flight.
        dq_tile_n: keys of a step of the separate dQ kernel.
        takes_turns: whether a deterministic variant's blocks add to dQ in the order of their keys;
            else dQ has a kernel of its own.
        short_addresses: whether eight threads copy a row, several chunks each, dQ's sums are at one
            address and offsets of it, and no step divides by the size of a group of heads.
        head_sections: heads, a power of two at most, whose thread blocks are dealt out together,
            longest first; 0: one head after another.
        late_copies: whether the next step's tiles start behind the scores' product, not ahead.
    """

    key_atoms: int = 1
    head_splits: int = 1
    score_splits: int = 1
    num_stages: int = 2
    dq_tile_n: int = 32
    takes_turns: bool = False
    short_addresses: bool = False
    late_copies: bool = False
    head_sections: int = 0

    pins: ClassVar[tuple[str, ...]] = (
        *Sm80Plan.pins,
        *("key_atoms", "head_splits", "score_splits", "num_stages", "dq_tile_n"),
        *("takes_turns", "short_addresses", "late_copies", "head_sections"),
    )

    keep_keys: ClassVar[int] = 16

    @property
    def main_launch(self) -> str:
        """The template part that launches the main kernel."""
        return f"sm80/backward_launch{'_turns' if self.takes_turns else ''}.cu.j2"

    @property
    def separate_dq(self) -> bool:
        """Whether dQ has a kernel of its own, which sums over the keys in a fixed order."""
        return self.variant.deterministic and not self.takes_turns

    @property
    def convert(self) -> str:
        """The template part that converts dQ."""
        return "sm80/backward_convert.cu.j2"

    @property
    def chained(self) -> bool:
        """Whether a kernel starts while the one before it ends."""
        return False

    @property
    def persistent(self) -> bool:
        """Whether a thread block goes from tile of keys to tile of keys; never in this family."""
        return False

    @property
    def converts_early(self) -> bool:
        """Whether the main kernel converts dQ of heads that are done; never in this family."""
        return False

    @property
    def sections(self) -> bool:
        """Whether thread blocks of several heads are dealt out together."""
        return self.head_sections > 0

    @property
    def adds_in_order(self) -> bool:
        """Whether thread blocks add to dQ one after another, in an order that never changes."""
        return False

    @property
    def walks_tiles(self) -> bool:
        """Whether tiles of queries are classified one by one, not bounds of one loop."""
        return walks_tiles(self.program)

    @property
    def learned(self) -> tuple[ProgramCapture, ...]:
        """The captures that have a gradient."""
        return tuple(capture for capture in self.program.captures if capture.grad)

    @property
    def sums_over_keys(self) -> bool:
        """Whether some gradient of a capture has an entry for each query."""
        return any(site.level == "row" for site in self.program.gradients)

    @property
    def sums_over_queries(self) -> bool:
        """Whether some gradient of a capture has an entry for each head or key."""
        return any(site.level in ("head", "column") for site in self.program.gradients)

    def elements_of(self, capture: ProgramCapture) -> str:
        """Elements of a capture, in C++ over the WorkspaceSizes ``s``."""
        return _product(capture.dims)

    def slices_of(self, bound: TileBound) -> str:
        """Elements of a capture for each position, in C++ over the WorkspaceSizes ``s``."""
        dims = bound.capture.dims
        return _product(dims[: bound.dim] + dims[bound.dim + 1 :])

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """K and V for good, Q and dO in stages, dS to change hands between warps."""
        stages = self.num_stages
        buffers = [
            ("k", tile_bytes(self.tile_n, self.padded_qk), "K, then dK"),
            ("v", tile_bytes(self.tile_n, self.padded_v), "V, then dV"),
            ("q", stages * tile_bytes(self.tile_m, self.padded_qk), f"{stages} tiles of Q"),
            ("dout", stages * tile_bytes(self.tile_m, self.padded_v), f"{stages} tiles of dO"),
            ("lse", stages * self.tile_m * 4, f"{stages} tiles of lse"),
            ("delta", stages * self.tile_m * 4, f"{stages} tiles of delta"),
        ]
        if self.head_splits > 1:
            buffers.append(("p", tile_bytes(self.tile_n, self.tile_m), "P, transposed"))
        if self.stores_ds:
            buffers.append(("ds", tile_bytes(self.tile_n, self.tile_m), "dS, transposed"))
        if self.takes_turns:
            buffers.append(("turn", 4, "which block this is"))
        if self.walks_tiles:
            walk_bytes = 32 * self.num_warps * self.walk_bytes
            buffers.append(("walk", walk_bytes, "which tiles come next, of each thread"))
        if self.program.score_needed:
            score_bytes = 4 * self.score_m * 16 * self.key_atoms * self.num_warps
            buffers.append(("scores", score_bytes, "S of each lane, for the derivative"))
        if self.variant.dropout:
            keep_bytes = self.tile_m // 16 * -(-self.tile_n // 32) * 128
            buffers.append(("keep", keep_bytes, "dropout's keep bits"))
        return stack(buffers, SMEM_ALIGNMENT)

    @property
    def copies_short_rows(self) -> bool:
        """Whether eight threads copy a row of Q and dO: with cp.async, of 64, 128 ... columns."""
        sizes = self.variant.head_dim | self.variant.head_dim_v
        return self.short_addresses and self.copy == "copy_async" and sizes % 64 == 0

    @property
    def loads_ahead(self) -> bool:
        """Whether the next step's tiles are on their way during a step, not only from its end."""
        return self.num_stages > 1

    @property
    def walk_bytes(self) -> int:
        """Size of a QueryWalk: the block's position and the walk, in ints."""
        return 4 * ((8 if self.variant.layout == "varlen" else 6) + 5)

    @property
    def finds_bounds_anew(self) -> bool:
        """Whether each step computes which queries see the keys, where registers are short."""
        return max(self.padded_qk, self.padded_v) > 192 and not self.walks_tiles

    @property
    def recomputed(self) -> str:
        """Where lanes' addresses are computed anew, since with nvcc 13.0 held ones spill.

        "step": from the first product of a step; "rest": behind its barrier; "" nowhere.
        """
        columns = max(self.padded_qk, self.padded_v)
        if self.head_splits == 1:
            return ""
        if self.walks_tiles or 128 < columns <= 192:
            return "step"
        return "rest" if self.variant.dropout or columns < 128 else ""

    @property
    def stores_ds(self) -> bool:
        """Whether other warps read a warp's dS: for dQ, or for their columns of dK."""
        return not self.separate_dq or self.head_splits > 1

    @property
    def score_m(self) -> int:
        """Queries whose scores a warp holds at once."""
        return self.tile_m // (self.head_splits * self.score_splits)

    @property
    def dq_atoms(self) -> int:
        """Blocks of 16 queries of a warp in dQ's product; other warps have other columns.

        Of those that give the busiest warp least to multiply, the one that reads least. A
        separate dQ kernel has all columns in a warp.
        """
        if self.separate_dq:
            widest = 128 if self.target.capability[0] == 9 else 112  # two spill above
            narrow = self.padded_qk <= widest and self.program.score is None
            return 2 if narrow and self._dq_bytes(128, 1) <= self.target.max_smem_bytes else 1
        legal = [n for n in (1, 2, 4) if self._dq_blocks(n)]
        return min(legal, key=lambda n: (n * self._dq_blocks(n), n + self._dq_blocks(n)), default=1)

    @property
    def dq_tile_m(self) -> int:
        """Queries of a thread block of the separate dQ kernel: four warps' rows."""
        return max(64 * self.dq_atoms, self.tile_m)

    @property
    def dq_stages(self) -> int:
        """Tiles of K and V in flight there, as many as two thread blocks of it have room for."""
        room = self.target.max_smem_bytes + 1024
        return 2 if 2 * (self._dq_bytes(self.dq_tile_m, 2) + 1024) <= room else 1

    @property
    def dq_smem_bytes(self) -> int:
        """Shared memory of the separate dQ kernel: Q, dO, and stages of K and V."""
        return self._dq_bytes(self.dq_tile_m, self.dq_stages)

    def _dq_bytes(self, queries: int, stages: int) -> int:
        rows = queries + stages * self.dq_tile_n
        return tile_bytes(rows, self.padded_qk) + tile_bytes(rows, self.padded_v)

    def _dq_blocks(self, atoms: int) -> int:
        """16-column blocks of a warp that has ``atoms`` blocks of queries; 0 where none fits."""
        warps_m, rest = divmod(self.tile_m, 16 * atoms)
        if rest or self.num_warps % warps_m:
            return 0
        return -(-self.padded_qk // (16 * (self.num_warps // warps_m)))

    @property
    def registers_estimate(self) -> int:
        """Accumulators of dK, dV, S and dP, and the overhead."""
        columns = sum(
            16 * -(-padded // (16 * self.head_splits)) for padded in (self.padded_qk, self.padded_v)
        )
        return 16 * self.key_atoms * (columns + 2 * self.score_m) // 32 + OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once its tiles divide among the warps."""
        if self.tile_n * self.head_splits != 16 * self.key_atoms * self.num_warps:
            raise PlanError(
                f"plan: {self.name}: expected tile_n = 16 * key_atoms * num_warps / head_splits, "
                f"got {self.tile_n}, {self.key_atoms}, {self.num_warps} and {self.head_splits}."
            )
        if self.tile_m % (16 * self.head_splits * self.score_splits):
            raise PlanError(
                f"plan: {self.name}: expected tile_m in multiples of 16 * head_splits * "
                f"score_splits, got {self.tile_m}, {self.head_splits} and {self.score_splits}."
            )
        step = 32 if self.variant.dropout else 16
        if self.dq_tile_n % step:
            raise PlanError(
                f"plan: {self.name}: expected dq_tile_n in multiples of {step}, got "
                f"{self.dq_tile_n}."
            )
        self._check_steps()
        if self.separate_dq and self.dq_smem_bytes > self.target.max_smem_bytes:
            lower = " or ".join(name for name in ("dq_tile_m", "dq_tile_n") if name in self.pins)
            raise PlanError(
                f"plan: {self.name}: the dQ kernel needs {self.dq_smem_bytes} bytes of shared "
                f"memory, {self.target.name} allows {self.target.max_smem_bytes}. Lower {lower}."
            )
        if not self.separate_dq and not self._dq_blocks(self.dq_atoms):
            raise PlanError(
                f"plan: {self.name}: expected tile_m = 16, 32 or 64 times a divisor of "
                f"{self.num_warps} warps, got {self.tile_m}."
            )
        return super().check()

    def _check_steps(self) -> None:
        if self.takes_turns and not can_take_turns(self.variant):
            raise PlanError(
                f"plan: {self.name}: expected a deterministic variant whose mask is a band of "
                "positions and whose captures have no gradients, got another with takes_turns."
            )
        if self.head_sections and (self.takes_turns or self.variant.layout == "varlen"):
            raise PlanError(
                f"plan: {self.name}: expected head_sections 0 where blocks take turns or sequences "
                f"are packed, got {self.head_sections}."
            )
        if self.late_copies and not self.loads_ahead:
            raise PlanError(
                f"plan: {self.name}: expected num_stages above 1 for late_copies, got "
                f"{self.num_stages}."
            )


def can_take_turns(variant: Variant) -> bool:
    """Whether blocks may add to dQ in turn: keys that see a tile of queries are neighbours."""
    program = program_for(variant)
    return variant.deterministic and not (walks_tiles(program) or program.gradients)
