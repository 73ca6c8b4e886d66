"""Expression -> its type, its parts, and the order in which they are computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .nodes import Binary, Call, Const, Expr, Load, Name, Named, Select, Type, Unary

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
LOGICAL = ("and", "or")
BITWISE = ("&", "|", "^")
_RANK: dict[Type, int] = {"bool": 0, "int": 1, "float": 2}
_FIXED: dict[str, Type] = {
    "exp": "float", "exp2": "float", "log": "float", "log2": "float", "tanh": "float",
    "sigmoid": "float", "sqrt": "float", "rsqrt": "float", "sin": "float", "cos": "float",
    "float": "float", "int": "int", "floor": "int",
}  # fmt: skip


_known: dict[int, tuple[Expr, Type]] = {}
"""Types by identity: an Expr in here keeps its id. Only to be quick on programs that share."""
_MAX_KNOWN = 100_000


def type_of(expr: Expr) -> Type:
    """The type of ``expr``'s value; ``floor`` gives an int, as Python's does."""
    while isinstance(expr, Named):
        expr = expr.expr
    if isinstance(expr, Const):
        return _type_of_value(expr.value)
    if isinstance(expr, Name | Load):
        return expr.type
    known = _known.get(id(expr))
    if known is not None:
        return known[1]
    found = _type_of_operator(expr)
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[id(expr)] = (expr, found)
    return found


def _type_of_operator(expr: Unary | Binary | Select | Call) -> Type:
    if isinstance(expr, Unary):
        return "bool" if expr.op == "not" else _number(type_of(expr.operand))
    if isinstance(expr, Binary):
        return _type_of_binary(expr)
    if isinstance(expr, Select):
        return promoted(type_of(expr.then), type_of(expr.otherwise))
    assert isinstance(expr, Call)
    fixed = _FIXED.get(expr.function)
    return fixed or _number(promoted(*(type_of(arg) for arg in expr.args)))


def promoted(*types: Type) -> Type:
    """The widest of ``types``: bool, then int, then float."""
    return max(types, key=_RANK.__getitem__)


def _type_of_value(value: float) -> Type:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "float"


def _number(kind: Type) -> Type:
    return "int" if kind == "bool" else kind


def _type_of_binary(expr: Binary) -> Type:
    if expr.op in COMPARISONS or expr.op in LOGICAL:
        return "bool"
    if expr.op == "/":
        return "float"
    kind = promoted(type_of(expr.left), type_of(expr.right))
    return kind if expr.op in BITWISE else _number(kind)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The operands of ``expr``, in the order of its fields."""
    if isinstance(expr, Const | Name):
        return ()
    if isinstance(expr, Named):
        return (expr.expr,)
    if isinstance(expr, Load):
        return expr.index
    if isinstance(expr, Unary):
        return (expr.operand,)
    if isinstance(expr, Binary):
        return (expr.left, expr.right)
    if isinstance(expr, Select):
        return (expr.condition, expr.then, expr.otherwise)
    return expr.args


def with_children(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """``expr`` with other operands; the inverse of ``children``."""
    if isinstance(expr, Const | Name):
        return expr
    if isinstance(expr, Named):
        return Named(expr.id, parts[0])
    if isinstance(expr, Load):
        return replace(expr, index=parts)
    if isinstance(expr, Unary):
        return Unary(expr.op, parts[0])
    if isinstance(expr, Binary):
        return Binary(expr.op, *parts)
    if isinstance(expr, Select):
        return Select(*parts)
    return Call(expr.function, parts)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node below ``roots`` once, operands before what uses them.

    A node that several parents share is visited once, so a program of n nodes takes n steps
    however often its lets are used.
    """
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((part, False) for part in reversed(children(node)))


def plain(expr: Expr) -> Expr:
    """``expr`` without the name that a ``let`` gave to the whole of it."""
    while isinstance(expr, Named):
        expr = expr.expr
    return expr


def label(expr: Expr) -> tuple[str, ...]:
    """What a node is apart from its operands; equal labels and operands are equal expressions."""
    if isinstance(expr, Const):
        return ("const", type(expr.value).__name__, repr(expr.value))
    if isinstance(expr, Name):
        return ("name", expr.id, expr.type)
    if isinstance(expr, Named):
        return ("named", expr.id)
    if isinstance(expr, Load):
        return ("load", expr.capture, expr.type)
    if isinstance(expr, Unary):
        return ("unary", expr.op)
    if isinstance(expr, Binary):
        return ("binary", expr.op)
    if isinstance(expr, Select):
        return ("select",)
    return ("call", expr.function)
