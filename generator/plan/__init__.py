"""(Variant, pass, target) -> KernelPlans, by family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from ..arch import TARGETS, Target, family_for
from ..errors import PlanError
from ..variant import PASSES, Variant
from . import cpu, shipped, sm75, sm80, sm90, sm90_backward, sm90_wide_backward
from .base import KernelPlan, SmemBuffer

__all__ = ["KernelPlan", "SmemBuffer", "candidates", "plan"]

_PLANNERS: dict[str, ModuleType] = {"cpu": cpu, "sm75": sm75, "sm80": sm80, "sm90": sm90}


def plan(
    variant: Variant,
    pass_name: str,
    target: Target,
    *,
    family: str | None = None,
    pins: Mapping[str, Any] | None = None,
) -> KernelPlan:
    """The plan that ships for ``variant`` on ``target``, with ``pins`` from `tuning:` applied.

    Raises:
        PlanError: when nothing fits; the message names the limit.
        TargetError: when ``family`` can't serve ``target``.
    """
    planner, family, reason = _planner(variant, pass_name, target, family)
    chosen: KernelPlan = planner.plan(variant, pass_name, target, family, reason)
    if shipped.TABLE:
        chosen = chosen.pinned(dict(shipped.pins_of(variant.key, pass_name, target.name, family)))
    return chosen.pinned(pins or {}).check()


def candidates(
    variant: Variant, pass_name: str, target: Target, *, family: str | None = None
) -> Iterator[KernelPlan]:
    """Every legal plan for the tuner to time, the shipped one first."""
    first = plan(variant, pass_name, target, family=family)
    yield first
    planner, family, reason = _planner(variant, pass_name, target, family)
    for found in planner.candidates(variant, pass_name, target, family, reason):
        if found != first:
            yield found


def _planner(
    variant: Variant, pass_name: str, target: Target, family: str | None
) -> tuple[ModuleType, str, str]:
    if pass_name not in PASSES:
        raise PlanError(f"pass: expected one of {', '.join(PASSES)}, got {pass_name!r}.")
    asked = family is not None
    family, reason = family_for(target, family)
    if variant.dtype not in target.dtypes:
        others = [t.name for t in TARGETS.values() if variant.dtype in t.dtypes]
        raise PlanError(
            f"plan: {variant.key}: dtype {variant.dtype} runs on {', '.join(others)} only, "
            f"got target {target.name}. Use {' or '.join(target.dtypes)}."
        )
    if family == "sm90" and pass_name == "backward":
        missing = sm90_backward.missing(variant, asked)
        if missing:
            return sm80, "sm80", f"fallback: family sm90 has no backward for {missing}"
        wide = max(variant.head_dim, variant.head_dim_v) > 128
        return sm90_wide_backward if wide else sm90_backward, family, reason
    return _PLANNERS[family], family, reason
