"""Variant -> Program: its mask as a band of diagonals and an element predicate."""

from __future__ import annotations

from dataclasses import dataclass

from .ir import Binary, Expr, Name, binary, to_text
from .variant import Variant


@dataclass(frozen=True, slots=True)
class Band:
    """Keys that a query may see as a band of diagonals: lower <= kv_idx - q_idx <= upper.

    A bound is an expression over the call's sizes, or None where the band is open. A band turns
    into loop bounds: tiles outside it are never visited, tiles inside it need no mask.
    """

    lower: Expr | None = None
    upper: Expr | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What a template's hooks are filled from.

    Attributes:
        band: the part of the mask that is a band of diagonals.
        mask: the predicate on one element, band included; None when all are visible.
    """

    band: Band = Band()
    mask: Expr | None = None

    @property
    def mask_text(self) -> str:
        """The mask in the language of the specs, for comments; ``True`` when all are visible."""
        return "True" if self.mask is None else to_text(self.mask)

    @property
    def mask_cpp(self) -> str:
        """The mask as a C++ expression over q_idx, kv_idx, q_len and kv_len."""
        return "true" if self.mask is None else to_text(self.mask, cpp=True)

    @property
    def lower_cpp(self) -> str | None:
        """The band's lower bound on kv_idx - q_idx as C++, None where open."""
        return None if self.band.lower is None else to_text(self.band.lower, cpp=True)

    @property
    def upper_cpp(self) -> str | None:
        """The band's upper bound on kv_idx - q_idx as C++, None where open."""
        return None if self.band.upper is None else to_text(self.band.upper, cpp=True)


def program_for(variant: Variant) -> Program:
    """The program that ``variant``'s presets expand into.

    Causal is bottom-right aligned, as FlashAttention >= 2.1: query i sees keys up to
    i + kv_len - q_len.
    """
    if not variant.causal:
        return Program()
    shift = binary("-", Name("kv_len"), Name("q_len"))
    limit = binary("+", Name("q_idx"), shift)
    return Program(Band(upper=shift), Binary("<=", Name("kv_idx"), limit))
