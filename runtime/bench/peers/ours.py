"""flashgen's own kernel as a contender, and the same variant without one of its fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ....generator.variant import Variant
from ...kernel import Kernel
from ...samples import Inputs
from ..cells import Cell
from ..record import OURS
from .base import Attend, Refusal


@dataclass(frozen=True)
class Ours:
    """The kernel of the variant, of the family that serves the device or of one asked for."""

    family: str | None = None

    @property
    def name(self) -> str:
        """``flashgen``, or ``flashgen:FAMILY``."""
        return OURS if self.family is None else f"{OURS}:{self.family}"

    def absent(self, device: torch.device) -> str | None:
        """It is always there."""
        return None

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """The kernel, as a program would call it."""
        kernel = Kernel(cell.variant, data.q.device, spec=cell.spec, family=self.family)
        call: Any = partial(kernel, dropout_p=dropout_p, **data.arguments)
        return Attend(call)


@dataclass(frozen=True)
class Without:
    """Our kernel of the variant without one of its fields, of the same family.

    Attributes:
        name: what --peers calls it.
        lacks: the field.
        plain: a variant -> the one without it.
        family: as `Ours` has it.
    """

    name: str
    lacks: str
    plain: Callable[[Variant], Variant]
    family: str | None = None

    def absent(self, device: torch.device) -> str | None:
        """It is always there."""
        return None

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """The kernel of the other variant."""
        variant = self.plain(cell.variant)
        if variant == cell.variant:
            raise Refusal(f"the variant has no {self.lacks} itself")
        p = dropout_p if variant.dropout else 0.0
        attend = Ours(self.family).attend(replace(cell, variant=variant), data, p)
        return replace(attend, drops=p > 0)


UNORDERED = Without(
    "unordered", "deterministic", lambda variant: replace(variant, deterministic=False)
)
UNDROPPED = Without("undropped", "dropout", lambda variant: replace(variant, dropout_bits=0))
