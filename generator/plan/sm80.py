"""Variant -> plan of the sm80 family."""

from __future__ import annotations

from collections.abc import Iterator

from ..arch import Target
from ..errors import PlanError
from ..variant import Variant
from .sm80_backward import Sm80BackwardPlan, backward_shapes
from .sm80_base import Sm80Plan
from .sm80_forward import Sm80ForwardPlan, forward_shapes


def plan(variant: Variant, pass_name: str, target: Target, family: str, reason: str) -> Sm80Plan:
    """The shipped plan: the first legal candidate."""
    shipped = next(candidates(variant, pass_name, target, family, reason), None)
    if shipped is None:
        raise PlanError(
            f"plan: {variant.key}: no {pass_name} tile fits {target.name} "
            f"({target.max_smem_bytes} bytes of shared memory)."
        )
    return shipped


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm80Plan]:
    """Every legal plan, best first."""
    forward = pass_name == "forward"
    kind = Sm80ForwardPlan if forward else Sm80BackwardPlan
    shapes = forward_shapes if forward else backward_shapes
    for tiles in shapes(variant, target):
        candidate = kind(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            **tiles,
        )
        try:
            candidate.check()
        except PlanError:
            continue  # over a limit of this target
        yield candidate
