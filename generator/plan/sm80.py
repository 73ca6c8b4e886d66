"""Variant -> plan of the sm80 family."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ..arch import Target
from ..variant import Variant
from .base import first_legal, legal
from .sm80_alternatives import backward_alternatives, forward_alternatives
from .sm80_backward import Sm80BackwardPlan
from .sm80_backward_tiles import backward_shapes
from .sm80_base import Sm80Plan
from .sm80_forward import Sm80ForwardPlan, forward_shapes


def plan(variant: Variant, pass_name: str, target: Target, family: str, reason: str) -> Sm80Plan:
    """The shipped plan: the first legal candidate."""
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm80Plan]:
    """Every legal plan: what may ship, best first, then what is only worth a try."""
    forward = pass_name == "forward"
    kind = Sm80ForwardPlan if forward else Sm80BackwardPlan
    shapes = forward_shapes if forward else backward_shapes
    alternatives = forward_alternatives if forward else backward_alternatives
    plans = legal(
        kind(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            **tiles,
        )
        for tiles in chain(shapes(variant, target), alternatives(variant, target))
    )
    seen: set[Sm80Plan] = set()
    for found in plans:
        if found not in seen:
            seen.add(found)
            yield found
