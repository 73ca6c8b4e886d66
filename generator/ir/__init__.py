"""The expression IR that scores and masks are programs in: immutable nodes and one printer.

Presets (causal is the first) and users' own expressions become the same nodes, so a template
has hooks for a program and no branch for a feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

INDEX_NAMES = ("b", "h", "h_kv", "q_idx", "kv_idx", "q_len", "kv_len", "num_heads")
"""Integer names in scope: positions within the sequence, unshifted, and the call's sizes."""


@dataclass(frozen=True, slots=True)
class Const:
    """A literal: int, float or bool."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Name:
    """A name in scope, one of INDEX_NAMES or ``score``."""

    id: str


@dataclass(frozen=True, slots=True)
class Binary:
    """``left op right`` with op one of ``+ - * <= < >= > == != and or``."""

    op: str
    left: Expr
    right: Expr


Expr: TypeAlias = Const | Name | Binary

_PRECEDENCE = {"or": 1, "and": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3}
_PRECEDENCE |= {"+": 4, "-": 4, "*": 5}
_CPP_OP = {"and": "&&", "or": "||"}
_FOLD = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """``left op right``, folded where both are constants or one is neutral."""
    if isinstance(left, Const) and isinstance(right, Const) and op in _FOLD:
        return Const(_FOLD[op](left.value, right.value))
    if op in "+-" and right == Const(0):
        return left
    if op == "+" and left == Const(0):
        return right
    return Binary(op, left, right)


def to_text(expr: Expr, *, cpp: bool = False) -> str:
    """``expr`` in Python's spelling, or C++'s with ``cpp``; parentheses only where needed."""
    return _print(expr, 0, cpp)


def _print(expr: Expr, outer: int, cpp: bool) -> str:
    if isinstance(expr, Const):
        if isinstance(expr.value, bool):
            return str(expr.value).lower() if cpp else str(expr.value)
        return str(expr.value)
    if isinstance(expr, Name):
        return expr.id
    inner = _PRECEDENCE[expr.op]
    op = _CPP_OP.get(expr.op, expr.op) if cpp else expr.op
    # the right operand of "-" needs parentheses at equal precedence
    text = f"{_print(expr.left, inner, cpp)} {op} {_print(expr.right, inner + 1, cpp)}"
    return f"({text})" if inner < outer else text
