"""Axes of a spec -> its Variants: the product of the lists, bounded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .variant import Variant

MAX_VARIANTS = 4096  # a matrix over this is a mistake: it would build for days


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one field that may be a list, in the order written.

    Attributes:
        field: of the spec.
        sets: the fields of a variant that it sets.
        values: for each point, the values of ``sets``.
    """

    field: str
    sets: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]


def size_of(axes: Sequence[Axis]) -> int:
    """How many variants the product has."""
    return math.prod(len(axis.values) for axis in axes)


def expand(axes: Sequence[Axis], base: Variant) -> tuple[Variant, ...]:
    """Every point of the matrix, the last axis varying fastest.

    Args:
        axes: no two of which set one field.
        base: gives the fields that no axis sets.

    Raises:
        ValueError: over MAX_VARIANTS points; a caller checks `size_of` to say where.
    """
    if size_of(axes) > MAX_VARIANTS:
        raise ValueError(f"{size_of(axes)} variants, at most {MAX_VARIANTS}")
    return tuple(
        replace(
            base,
            **{
                name: value
                for axis, values in zip(axes, point, strict=True)
                for name, value in zip(axis.sets, values, strict=True)
            },
        )
        for point in itertools.product(*(axis.values for axis in axes))
    )
