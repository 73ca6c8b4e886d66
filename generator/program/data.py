"""Program: a variant's score and mask, and what a template and a caller need to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..body import CaptureDtype
from ..ir import Expr

UNBOUNDED = 2**30
"""A run-time window side that hides nothing; positions are smaller."""


@dataclass(frozen=True, slots=True)
class Band:
    """Keys that a query may see as a band of diagonals: lower <= kv_idx - q_idx <= upper.

    A bound depends on the head only, and is None where the band is open. A band turns into loop
    bounds: tiles outside it are never visited, tiles inside it need no mask for it.
    """

    lower: Expr | None = None
    upper: Expr | None = None

    @property
    def sides(self) -> tuple[tuple[str, Expr], ...]:
        """The sides that are not open, as ("lower" or "upper", bound)."""
        both = (("lower", self.lower), ("upper", self.upper))
        return tuple((side, bound) for side, bound in both if bound is not None)


@dataclass(frozen=True, slots=True)
class ProgramCapture:
    """A tensor that the program reads: a keyword argument of the call.

    Attributes:
        name: of the argument.
        dims: sizes, as in a spec's capture; ``alibi_slopes`` and ``block_mask`` are given with
            every dimension, an absent or single batch or head expanded (stride 0).
        dtype: of its elements.
        grad: whether the backward gives its gradient.
        block: (queries, keys) of a block of ``block_mask``, whose last two sizes are
            ceil(seqlen_q / queries) and ceil(seqlen_k / keys); None for others.
    """

    name: str
    dims: tuple[str | int, ...]
    dtype: CaptureDtype
    grad: bool = False
    block: tuple[int, int] | None = None

    @property
    def cpp_name(name: str) -> str:
    """``name`` where the rendered code is free to use it, else with an underscore behind it.

    Different names stay different: what gets an underscore ends in one.
    """
    taken = name.rstrip("_") in _RESERVED or name.endswith("_") or "__" in name
    return f"{name}_" if taken else name
