"""Axes of a spec -> its Variants: the product of the lists, bounded."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from .variant import Variant

MAX_VARIANTS = 4096  # a matrix over this is a mistake: it would build for days


@dataclass(frozen=True, slots=True)
class Axes:
    """The values of each field that may be a list, in the order written."""

    head_dims: tuple[tuple[int, int], ...]  # (qk, v)
    dtypes: tuple[str, ...]
    causal: tuple[bool, ...]
    dropout_bits: tuple[int, ...]
    deterministic: tuple[bool, ...]

    @property
    def size(self) -> int:
        """How many variants the product has."""
        return math.prod(
            len(axis)
            for axis in (
                self.head_dims,
                self.dtypes,
                self.causal,
                self.dropout_bits,
                self.deterministic,
            )
        )


def expand(axes: Axes) -> tuple[Variant, ...]:
    """Every point of the matrix, the last axis varying fastest.

    Raises:
        ValueError: over MAX_VARIANTS points; a caller checks ``axes.size`` to say where.
    """
    if axes.size > MAX_VARIANTS:
        raise ValueError(f"{axes.size} variants, at most {MAX_VARIANTS}")
    points = itertools.product(
        axes.head_dims, axes.dtypes, axes.causal, axes.dropout_bits, axes.deterministic
    )
    return tuple(
        Variant(qk, v, dtype, causal, bits, det) for (qk, v), dtype, causal, bits, det in points
    )
