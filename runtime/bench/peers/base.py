"""What a peer is: a cell -> a differentiable function of q, k and v."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from ....generator.program import program_for
from ...samples import Inputs
from ..cells import Cell

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Refusal(Exception):  # noqa: N818  (an answer, not a fault)
    """A peer has no implementation for a cell; the message says why."""


@dataclass(frozen=True, slots=True)
class Attend:
    """A peer made ready for one cell.

    Attributes:
        function: of q, k, v; differentiable.
        heads_first: it takes and gives (batch, heads, seqlen, head_dim), else ours:
            (batch, seqlen, heads, head_dim).
        context: entered around calls of it.
        forward_only: it has no backward.
        drops: it drops elements where the cell does.
    """

    function: Function
    heads_first: bool = False
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    forward_only: bool = False
    drops: bool = True


class Peer(Protocol):
    """An implementation of attention."""

    @property
    def name(self) -> str:
        """What --peers calls it."""

    def absent(self, device: torch.device) -> str | None:
        """Why ``device``, or this Python, doesn't have it; None where it is there."""

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """Itself for one cell, whose device and keyword arguments are those of ``data``.

        Raises:
            Refusal: when it can't compute that function; never another function in its place.
        """


def plain_only(cell: Cell) -> None:
    """Refuse every variant but full and causal attention, with or without dropout.

    Raises:
        Refusal: names what it lacks.
    """
    variant = cell.variant
    if variant.sink:
        raise Refusal("no sink")
    if variant.window is not None:
        raise Refusal("no window")
    if program_for(variant).score is not None:
        raise Refusal("no score of one's own")
    if variant.block_mask is not None or (variant.body and variant.body.mask is not None):
        raise Refusal("no mask of one's own")
    square_only(cell)


def square_only(cell: Cell) -> None:
    """Refuse causal attention where alignments differ.

    Raises:
        Refusal: when seqlen_q is not seqlen_k.
    """
    if cell.variant.causal and cell.shape.seqlen_q != cell.shape.seqlen_k:
        raise Refusal("causal is aligned otherwise where seqlen_q is not seqlen_k")
