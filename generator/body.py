"""Body: what a variant's own score and mask are made of, captures and params included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .ir.cpp_names import cpp_name
from .ir.nodes import Expr

CaptureDtype: TypeAlias = Literal["bool", "int32", "int64", "fp16", "bf16", "fp32", "fp64"]
CAPTURE_DTYPES: tuple[CaptureDtype, ...] = (
    "bool", "int32", "int64", "fp16", "bf16", "fp32", "fp64",
)  # fmt: skip
AXES = (
    "batch", "num_heads", "num_heads_kv", "seqlen_q", "seqlen_k", "total_q", "total_k",
)  # fmt: skip
"""Sizes of the call that a capture's dimension may have; total_* with ``layout: varlen`` only."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A tensor that expressions read: a keyword argument of the call.

    Attributes:
        name: what expressions and calls name it.
        dims: size of each dimension: one of AXES, or a number; () is a scalar.
        dtype: of its elements.
        grad: whether the backward gives its gradient; float dtypes only.
    """

    name: str
    dims: tuple[str | int, ...]
    dtype: CaptureDtype
    grad: bool = False


@dataclass(frozen=True, slots=True)
class Param:
    """A run-time param: a number that is a keyword argument of the call."""

    name: str
    type: Literal["int", "float"]

    @property
    def cpp_name(self) -> str:
        """What the rendered code calls it."""
        return cpp_name(self.name)


@dataclass(frozen=True, slots=True)
class Body:
    """A variant's own program: compile-time params are constants in it already.

    Attributes:
        captures: sorted by name; only those that an expression reads.
        params: run-time params that an expression reads, sorted by name.
        mask: whether a query sees a key; None for always. Type bool.
        score: the new score, of ``score`` and the names in scope; None for unchanged. Type float.
    """

    captures: tuple[Capture, ...] = ()
    params: tuple[Param, ...] = ()
    mask: Expr | None = None
    score: Expr | None = None
