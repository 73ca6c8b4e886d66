"""Forward plans of the sm80 family, and the tiles that they come in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..arch import Target
from ..errors import PlanError
from ..program import program_for
from ..variant import Variant
from .base import KernelPlan, SmemBuffer, stack
from .reads import read_levels
from .sm80_base import OVERHEAD_REGISTERS, SMEM_ALIGNMENT, Sm80Plan, tile_bytes
from .sm80_forward_loop import loop_fields

RESCALES = ("rows", "joint", "seldom")
"""When the output is rescaled; see `Sm80ForwardPlan`."""


@dataclass(frozen=True, kw_only=True)
class Sm80ForwardPlan(Sm80Plan):
    """Forward: warps are stacked on the queries, K and V have one stage each.

    Attributes:
        key_splits: warps that share queries; each scores that part of a step's keys and owns that
            part of the output's columns, and shared memory takes P to the others.
        num_stages: tiles of K and of V that shared memory holds; with two, all of the next step is
            on its way during a step, which then has one barrier.
        paced: whether copies start between the steps of products, not ahead of them.
        short_rows: whether eight threads copy a row, several chunks each: fewer addresses.
        rescale: what rescales the output: a new maximum of a row ("rows", each with a vote of its
            own), of any row of the warp ("joint", one vote), or one by a factor of 2^8 ("seldom").
    """

    key_splits: int = 1
    num_stages: int = 1
    paced: bool = False
    short_rows: bool = False
    rescale: str = "rows"

    pins: ClassVar[tuple[str, ...]] = (
        *Sm80Plan.pins, "key_splits", "num_stages", "paced", "short_rows", "rescale",
    )  # fmt: skip

    @property
    def loads_ahead(self) -> bool:
        """Whether the loop is the one of templates/sm80/forward_ahead.cu.j2."""
        return self.paced or self.num_stages > 1

    @property
    def full_runs(self) -> bool:
        """Whether a walk's full tiles have a loop of their own: 3 % on an H200 (2026-12).

        Up to 48 bytes spill where the mask reads captures (nvcc 13.0).
        """
        return self.program.tile_test is not None and not self.program.captures

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """Q (later the output), K and V; with one stage K(i - 1) loads while V(i) is used."""
        q_bytes = tile_bytes(self.tile_m, max(self.padded_qk, self.padded_v))
        tiles = "one tile" if self.num_stages == 1 else "two tiles"
        buffers = [
            ("q", q_bytes, "Q, then the output"),
            ("k", self.num_stages * tile_bytes(self.tile_n, self.padded_qk), f"{tiles} of K"),
            ("v", self.num_stages * tile_bytes(self.tile_n, self.padded_v), f"{tiles} of V"),
        ]
        if self.key_splits > 1:
            buffers += [
                ("p", tile_bytes(self.tile_m, self.tile_n), "P, to change hands"),
                ("rows", 4 * self.key_splits * self.tile_m, "row maxima, then sums, of each part"),
            ]
        if self.stats_in_smem:
            stats_bytes = 32 * self.tile_m * self.key_splits
            buffers.append(("stats", stats_bytes, "maximum and sum of each row, between steps"))
        if self.program.tile_test is not None:
            seen_bytes = self.num_warps // self.key_splits * -(-self.tile_n // 32) * 4
            buffers.append(("seen", seen_bytes, "the keys that each warp's queries see, as bits"))
        if self.variant.layout == "varlen":
            buffers.append(("position", 32, "which queries the block owns"))
        return stack(buffers, SMEM_ALIGNMENT)

    @property
    def stats_in_smem(self) -> bool:
        """Whether the row statistics leave their registers between two steps."""
        if self.variant.layout == "varlen" and self.target.capability >= (10, 0):
            return True  # else it spills there; on sm90 it spills with them
        reads = self.program.tile_test is not None and bool(self.program.captures)
        return self.program.score is not None or reads

    @property
    def registers_estimate(self) -> int:
        """Accumulators of the output and the scores, and the overhead."""
        columns = 16 * -(-self.padded_v // (16 * self.key_splits)) + self.tile_n // self.key_splits
        return self.tile_m * self.key_splits // self.num_warps * columns // 32 + OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once its tiles divide among the warps."""
        rows = 16 * self.num_warps // self.key_splits
        step = 16 if self.key_splits == 1 else 32 * self.key_splits
        if self.num_warps % self.key_splits or self.tile_m % rows or self.tile_n % step:
            raise PlanError(
                f"plan: {self.name}: expected tile_m in multiples of {rows} (16 rows a warp) and "
                f"tile_n in multiples of {step}, got {self.tile_m}x{self.tile_n}."
            )
        if self.rescale not in RESCALES:
            raise PlanError(
                f"plan: {self.name}: rescale: expected one of {', '.join(RESCALES)}, got "
                f"{self.rescale!r}."
            )
        self._check_loads()
        return super().check()

    def _check_loads(self) -> None:
        """Loads ahead and short rows are for whole rows, and for loops without scores."""
        sizes = {self.variant.head_dim, self.variant.head_dim_v}
        plain = self.program.score is None and self.key_splits == 1
        whole = self.copy == "copy_async" and all(size % 64 == 0 for size in sizes)
        if self.num_stages > 2 or (self.loads_ahead and not plain):
            raise PlanError(
                f"plan: {self.name}: expected one stage and no pacing where a program scores "
                "or warps share queries, two stages at most elsewhere, "
                f"got num_stages {self.num_stages}, paced {self.paced}. Lower num_stages."
            )
        if (self.loads_ahead or self.short_rows) and not whole:
            raise PlanError(
                f"plan: {self.name}: expected head sizes in multiples of 64 and cp.async where "
                f"copies are paced, staged or of short rows, got {self.copy} of {sorted(sizes)}. "
                "Leave them out."
            )


def forward_shapes(variant: Variant, target: Target) -> Iterator[dict[str, Any]]:
    """Tiles, each with its loop, in order of preference.

    Rows per warp first, since each K and V fragment is then used twice; above 128 columns two row
    blocks a warp no longer fit. On an H200, causal, seqlen 4096, d128: 64 keys a step 300 TFLOP/s,
    48 keys 298, 32 keys 269, 64 rows x 64 keys 250 (three resident 273), 8 warps 234 (2026-12).

    A program's loads are in flight for several elements at once, which takes registers: one row
    block a warp where the score reads a tensor at each element (with nvcc 13.0, 60 bytes spill at
    d80 else) or, above 96 columns, at a row or a column (4 bytes at d128). From sm100 up the
    compiler fetches more ahead: there it is one, above 96 columns, where the mask reads a tensor or
    tests tiles (16 to 64 bytes), and a sink leaves no room for 128 keys (16 bytes).
    """
    columns = max(variant.head_dim, variant.head_dim_v)
    program = program_for(variant)
    reads = read_levels(program)
    later = target.capability >= (10, 0)
    plain = program.score is None and program.tile_test is None and variant.layout != "varlen"
    # as forward_tiles has them
    shapes = [(m, n, w, 1, 1) for m, n, w in ((128, 64, 4), (128, 32, 4), (128, 64, 8))]
    small = [(64, 64, 4, 1, 1), (64, 32, 4, 1, 1)]
    if columns > 128:  # at 256, H200: 251 TFLOP/s with shared queries, 254 without
        shapes = [(64, 64, 4, 2 if columns <= 224 else 1, 2), (128, 64, 8, 2, 1)]
    elif ((columns > 64 or later) and "score" in reads) or (
        columns > 96 and ("line" in reads or (later and (reads or program.tile_test is not None)))
    ):
        shapes.insert(0, shapes.pop(2))
    elif columns > 96 and variant.dropout:  # 64 keys and random bits spill
        del shapes[0]
    elif columns <= 64 and plain and not variant.dropout and not (later and variant.sink):
        shapes.insert(0, (128, 128, 4, 1, 1))
    for shape in shapes + small:
        yield forward_tiles(*shape) | loop_fields(variant, target, shape[3])


def forward_tiles(
    tile_m: int, tile_n: int, num_warps: int, key_splits: int, min_blocks: int
) -> dict[str, int]:
    """Fields of a `Sm80ForwardPlan` by name."""
    return {
        "tile_m": tile_m,
        "tile_n": tile_n,
        "num_warps": num_warps,
        "key_splits": key_splits,
        "min_blocks": min_blocks,
    }
