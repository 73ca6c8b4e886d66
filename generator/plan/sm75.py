"""Variant -> plan of the sm75 family: sm80's kernels, with what Turing has in place of the rest.

Tiles are copied by way of registers, since there is no cp.async; a thread block has 64 KiB of
shared memory; products are of fp16 alone, and half as deep (m16n8k8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..arch import Target
from ..errors import PlanError
from ..program import program_for
from ..variant import Variant
from .base import KernelPlan, first_legal, legal
from .sm80_backward import Sm80BackwardPlan
from .sm80_backward_tiles import backward_tiles
from .sm80_base import Sm80Plan
from .sm80_forward import Sm80ForwardPlan

STAGED, DIRECT = COPIES = ("copy_staged", "copy_direct")
"""Headers in templates/device/ that fill tiles."""


def _check_copy(plan: Sm80Plan) -> None:
    if plan.copy not in COPIES:
        raise PlanError(
            f"plan: {plan.name}: copy: expected one of {', '.join(COPIES)}, got {plan.copy!r}."
        )


@dataclass(frozen=True, kw_only=True)
class Sm75ForwardPlan(Sm80ForwardPlan):
    """Forward: a tile of K or V on its way waits in registers.

    Attributes:
        copy: STAGED for that, or DIRECT, where registers are lacking.
    """

    templates: ClassVar[str] = "sm80"
    copy: str = STAGED

    pins: ClassVar[tuple[str, ...]] = (*Sm80ForwardPlan.pins, "copy")

    def check(self) -> KernelPlan:
        """This plan, once its copies are known."""
        _check_copy(self)
        return super().check()


@dataclass(frozen=True, kw_only=True)
class Sm75BackwardPlan(Sm80BackwardPlan):
    """Backward: shared memory holds one step's Q and dO; the next step's wait in registers.

    Attributes:
        copy: STAGED for that, or DIRECT, where registers are lacking: they come at a step's end.
        dq_tile_m: queries of a thread block of the separate dQ kernel (deterministic variants).
    """

    templates: ClassVar[str] = "sm80"
    copy: str = STAGED

    num_stages: int = 1
    dq_tile_m: int = 64

    pins: ClassVar[tuple[str, ...]] = (*Sm80BackwardPlan.pins, "copy", "dq_tile_m")

    @property
    def loads_ahead(self) -> bool:
        """Whether tiles wait in registers during the step before theirs."""
        return self.copy == STAGED

    @property
    def recomputed(self) -> str:
        """Where lanes' addresses are computed anew; see `Sm80BackwardPlan`."""
        columns = max(self.variant.head_dim, self.variant.head_dim_v)
        if columns <= 224:
            return super().recomputed
        # The other spills 4 to 20 bytes.
        return "rest" if columns == 256 or self.variant.dropout else "step"

    @property
    def dq_stages(self) -> int:
        """Tiles of K and V in the separate dQ kernel."""
        return 1

    @property
    def dq_atoms(self) -> int:
        """Blocks of 16 queries of a warp in dQ's product."""
        return 1 if self.separate_dq else super().dq_atoms

    def check(self) -> KernelPlan:
        """This plan, once both of its kernels fit."""
        _check_copy(self)
        if self.num_stages != 1:
            raise PlanError(
                f"plan: {self.name}: expected num_stages 1, since the next tiles wait in "
                f"registers, got {self.num_stages}."
            )
        if self.dq_tile_m not in (16, 32, 64):
            raise PlanError(
                f"plan: {self.name}: expected dq_tile_m 16, 32 or 64, got {self.dq_tile_m}."
            )
        return super().check()


def plan(variant: Variant, pass_name: str, target: Target, family: str, reason: str) -> Sm80Plan:
    """The shipped plan: the first legal candidate.

    Raises:
        PlanError: when nothing fits.
    """
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm80Plan]:
    """Every legal plan, best first."""
    kind, shapes = (
        (Sm75ForwardPlan, _forward) if pass_name == "forward" else (Sm75BackwardPlan, _backward)
    )
    return legal(
        kind(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            **tiles,
        )
        for tiles in shapes(variant)
    )


def _forward(variant: Variant) -> Iterator[dict[str, Any]]:
    """Tiles in order of preference: two row blocks a warp use each K and V fragment twice.

    With nvcc 13.0, 128 columns of such rows leave no register for a program, and above 200 columns
    a tile of 32 keys can't wait in registers.
    """
    columns = max(variant.head_dim, variant.head_dim_v)
    program = program_for(variant)
    if columns <= 64:
        shapes = [(128, 64, 4, STAGED), (64, 64, 4, STAGED), (64, 32, 4, STAGED)]
    elif columns <= 128:
        shapes = [(128, 32, 4, STAGED), (64, 64, 4, STAGED), (64, 32, 4, STAGED)]
        program_reads = program.score is not None or bool(program.captures)
        if columns > 112 and (variant.head_dim % 16 or program_reads):
            del shapes[0]
        elif columns > 96 and variant.dropout:  # random bits
            del shapes[0]
    elif columns <= (176 if variant.dropout else 200):
        shapes = [(64, 32, 4, STAGED), (64, 16, 4, STAGED)]
    else:
        shapes = [(64, 32, 4, DIRECT), (64, 16, 4, STAGED), (48, 32, 3, DIRECT)]
    for tile_m, tile_n, num_warps, copy in shapes:
        yield {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "num_warps": num_warps,
            "copy": copy,
        }


def _backward(variant: Variant) -> Iterator[dict[str, Any]]:
    """Tiles in order of preference.

    What spills with nvcc 13.0 is left out. Shared memory decides the rest: above 80 columns two
    warps share their keys, above 224 there is room for 16 of them.
    """
    columns = max(variant.head_dim, variant.head_dim_v)
    copy = STAGED if columns <= 144 else DIRECT
    # as backward_tiles has them
    if columns <= 64:
        shapes = [(32, 4, 2, 1, 2), (32, 4, 1, 1, 1)]
    elif columns <= 80:
        shapes = [(32, 4, 1, 1, 1), (16, 4, 1, 1, 1)]
    elif columns <= 128:
        shapes = [(32, 8, 1, 2, 1), (16, 4, 1, 1, 1)]
    else:
        shapes = [(32, 4, 1, 2, 1), (32, 2, 1, 2, 1)]
    dq_tiles = ((64, 32), (32, 32), (32, 16), (16, 32)) if variant.deterministic else ((64, 32),)
    for shape in shapes:
        for dq_tile_m, dq_tile_n in dq_tiles:
            more = {"copy": copy, "dq_tile_m": dq_tile_m, "dq_tile_n": dq_tile_n}
            yield backward_tiles(*shape) | more
