"""The expression IR that scores and masks are programs in: immutable, typed nodes.

Presets (causal, window, softcap, ...) and users' own expressions become the same nodes, so a
template has hooks for a program and no branch for a feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Type: TypeAlias = Literal["bool", "int", "float"]

INDEX_NAMES = ("b", "h", "h_kv", "q_idx", "kv_idx", "q_len", "kv_len", "num_heads")
"""Integer names in scope: positions within the sequence, unshifted, and the call's sizes."""

FUNCTIONS = (
    "abs", "min", "max", "clamp", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt",
    "rsqrt", "sin", "cos", "floor", "int", "float", "where",
)  # fmt: skip
"""The functions of the language; ``where`` and ``a if c else b`` both become a Select."""


@dataclass(frozen=True, slots=True)
class Const:
    """A literal: int, float or bool."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Name:
    """A name in scope: one of INDEX_NAMES, ``score``, or a run-time param of ``type``."""

    id: str
    type: Type = "int"


@dataclass(frozen=True, slots=True)
class Named:
    """What a ``let`` calls ``expr``: transparent to every analysis, a variable in printed code."""

    id: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Load:
    """``capture[index, ...]``, or a scalar capture with no index; 0 where out of range."""

    capture: str
    index: tuple[Expr, ...]
    type: Type


@dataclass(frozen=True, slots=True)
class Unary:
    """``op operand`` with op one of ``- not``."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """``left op right``.

    op is one of ``+ - * / // % & | ^ << >> < <= > >= == != and or``; a chained comparison is the
    ``and`` of its links. ``//`` and ``%`` floor, ``/`` is a float; a division by 0 gives 0.
    """

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Select:
    """``then if condition else otherwise``."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Call:
    """A function of FUNCTIONS but ``where``, of one to three arguments."""

    function: str
    args: tuple[Expr, ...]


Expr: TypeAlias = Const | Name | Named | Load | Unary | Binary | Select | Call
