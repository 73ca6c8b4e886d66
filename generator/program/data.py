"""Program: a variant's score and mask, and what a template and a caller need to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..body import CaptureDtype
from ..ir import Expr
from ..ir.cpp_names import cpp_name

LevelName = Literal["head", "row", "column", "element"]
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
    def cpp_name(self) -> str:
        """What the rendered code calls it."""
        return cpp_name(self.name)

    @property
    def cpp_type(self) -> str:
        """The type of an element in the rendered code."""
        return _CPP_TYPES[self.dtype]

    @property
    def dims_text(self) -> str:
        """The sizes, for a comment."""
        return ", ".join(str(dim) for dim in self.dims)

    @property
    def rank(self) -> int:
        """Number of dimensions; 0 for a scalar."""
        return len(self.dims)


@dataclass(frozen=True, slots=True)
class TileBound:
    """Per-tile bounds of a capture that the tile test reads; a pre-pass writes them.

    Attributes:
        name: of the array: the capture's and its side's, such as ``doc_q``.
        capture: whose elements they bound.
        side: along which positions, and whose tiles: queries ("q") or keys ("kv").
        dim: the capture's dimension that the position indexes.
    """

    name: str
    capture: ProgramCapture
    side: Literal["q", "kv"]
    dim: int

    @property
    def cpp_type(self) -> str:
        """The type that a load of the capture gives."""
        loaded = {"fp16": "float", "bf16": "float"}
        return loaded.get(self.capture.dtype, self.capture.cpp_type)


@dataclass(frozen=True, slots=True)
class GradientSite:
    """A place in the score that reads a capture with a gradient.

    Attributes:
        name: member of SiteGradients, and suffix of site_index_.
        capture: whose gradient the contributions add to.
        level: what the entry's place depends on: "head" (b and h), "row", "column" or "element".
    """

    name: str
    capture: ProgramCapture
    level: LevelName


@dataclass(frozen=True, slots=True)
class Member:
    """A value that a hook's struct holds."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """The body of a rendered hook: statements, then what it returns."""

    statements: tuple[str, ...]
    result: str


_CPP_TYPES = {
    "bool": "bool",
    "int32": "int32_t",
    "int64": "int64_t",
    "fp16": "CaptureFp16",
    "bf16": "CaptureBf16",
    "fp32": "float",
    "fp64": "double",
}
