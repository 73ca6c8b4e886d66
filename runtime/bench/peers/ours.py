"""flashgen's own kernel as a contender, and the same variant without ``deterministic``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

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
class Unordered:
    """Our kernel of the variant without ``deterministic``, of the same family."""

    family: str | None = None

    @property
    def name(self) -> str:
        """``unordered``."""
        return "unordered"

    def absent(self, device: torch.device) -> str | None:
        """It is always there."""
        return None

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """The kernel of the other variant."""
        if not cell.variant.deterministic:
            raise Refusal("the variant isn't deterministic itself")
        plain = replace(cell, variant=replace(cell.variant, deterministic=False))
        return Ours(self.family).attend(plain, data, dropout_p)
