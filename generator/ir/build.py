"""Operands -> the simplest node that means the same: folding, neutral elements, substitution."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .fold import apply_binary, apply_call, apply_unary
from .nodes import Binary, Call, Const, Expr, Load, Name, Named, Select, Type, Unary
from .types import LOGICAL, children, label, plain, type_of, walk, with_children

NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
TRUE, FALSE = Const(True), Const(False)


def same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are the same tree; 1, 1.0 and True are three constants."""
    pending, done = [(a, b)], set()
    while pending:
        x, y = pending.pop()
        x, y = plain(x), plain(y)
        if x is y or (id(x), id(y)) in done:
            continue
        done.add((id(x), id(y)))
        parts = children(x), children(y)
        if label(x) != label(y) or len(parts[0]) != len(parts[1]):
            return False
        pending += zip(*parts, strict=True)
    return True


def unary(op: str, operand: Expr) -> Expr:
    """``op operand``, simplified."""
    inner = plain(operand)
    if isinstance(inner, Const):
        return Const(apply_unary(op, inner.value))
    if isinstance(inner, Unary) and inner.op == op and type_of(inner.operand) != "bool":
        return inner.operand
    if op == "not":
        if isinstance(inner, Unary) and inner.op == "not":
            return inner.operand
        if isinstance(inner, Binary) and inner.op in NEGATED and not _has_float(inner):
            return Binary(NEGATED[inner.op], inner.left, inner.right)
    return Unary(op, operand)


def _has_float(comparison: Binary) -> bool:
    # not (a < b) is no a >= b where one of them is NaN
    return "float" in (type_of(comparison.left), type_of(comparison.right))


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """``left op right``, folded where both are constants or one is neutral."""
    a, b = plain(left), plain(right)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(apply_binary(op, a.value, b.value))
    if op in LOGICAL:
        return _logical(op, left, right)
    kind = type_of(Binary(op, left, right))
    if isinstance(b, Const):
        found = _with_constant_right(op, left, b.value, kind)
        if found is not None:
            return found
    if isinstance(a, Const):
        found = _with_constant_left(op, a.value, right, kind)
        if found is not None:
            return found
    if op in NEGATED and not _has_float(Binary(op, left, right)) and same(left, right):
        return Const(op in ("==", "<=", ">="))
    if op == "-" and kind == "int" and same(left, right):
        return Const(0)
    if op in ("+", "-") and isinstance(b, Unary) and b.op == "-" and type_of(b.operand) != "bool":
        return Binary("-" if op == "+" else "+", left, b.operand)
    return Binary(op, left, right)


def _logical(op: str, left: Expr, right: Expr) -> Expr:
    neutral = op == "and"
    for one, other in ((left, right), (right, left)):
        one = plain(one)
        if isinstance(one, Const):
            return other if bool(one.value) is neutral else Const(not neutral)
    return left if same(left, right) else Binary(op, left, right)


def _typed(expr: Expr, kind: Type) -> Expr | None:
    """``expr`` where it already has the type that the whole would have."""
    return expr if type_of(expr) == kind else None


def _with_constant_right(op: str, left: Expr, value: float, kind: Type) -> Expr | None:
    if op in ("+", "-") and value == 0:
        return _typed(left, kind)
    if op in ("*", "/", "//") and value == 1 and not (op == "//" and kind == "float"):
        return _typed(left, kind)
    if op in ("*", "&") and value == 0 and kind == "int":
        return Const(0)
    if op == "*" and value == -1:
        return unary("-", left) if type_of(left) == kind else None
    if op == "%" and value in (1, -1) and kind == "int":
        return Const(0)
    if op in ("//", "%", "/") and value == 0:
        return Const(0.0 if kind == "float" else 0)
    if op in ("<<", ">>", "|", "^") and value == 0:
        return _typed(left, kind)
    if op in ("+", "-") and isinstance(value, int) and kind == "int":
        if -(2**31) < value < 0:
            return binary("-" if op == "+" else "+", left, Const(-value))
        return _sum_of_constants(op, left, value)
    return None


def _sum_of_constants(op: str, left: Expr, value: int) -> Expr | None:
    """``(x + 1) + 2`` as ``x + 3``: ints only, where the order of a sum does not matter."""
    inner = left
    if not (isinstance(inner, Binary) and inner.op in ("+", "-")):
        return None
    tail = plain(inner.right)
    if not (isinstance(tail, Const) and isinstance(tail.value, int)):
        return None
    total = (tail.value if inner.op == "+" else -tail.value) + (value if op == "+" else -value)
    if abs(total) >= 2**31:
        return None
    return binary("-" if total < 0 else "+", inner.left, Const(abs(total)))


def _with_constant_left(op: str, value: float, right: Expr, kind: Type) -> Expr | None:
    if op == "+" and value == 0:
        return _typed(right, kind)
    if op == "-" and value == 0 and type_of(right) == kind:
        return unary("-", right)
    if op == "*" and value == 1:
        return _typed(right, kind)
    if op == "*" and value == -1 and type_of(right) == kind:
        return unary("-", right)
    if op in ("*", "&", "//", "%", "<<", ">>") and value == 0 and kind == "int":
        return Const(0)
    return None


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """``then if condition else otherwise``, simplified."""
    inner = plain(condition)
    kind = type_of(Select(condition, then, otherwise))
    if isinstance(inner, Const):
        chosen = then if inner.value else otherwise
        if type_of(chosen) == kind:
            return chosen
        return call("float" if kind == "float" else "int", chosen)
    if same(then, otherwise) and type_of(then) == kind:
        return then
    if same(then, TRUE) and same(otherwise, FALSE):
        return condition
    return Select(condition, then, otherwise)


def call(function: str, *args: Expr) -> Expr:
    """``function(*args)``, simplified; ``where`` is a Select."""
    if function == "where":
        return select(*args)
    parts = [plain(arg) for arg in args]
    if all(isinstance(part, Const) for part in parts):
        return Const(
            apply_call(function, tuple(part.value for part in parts if isinstance(part, Const)))
        )
    kind = type_of(args[0])
    if function in ("int", "floor") and kind == "int":
        return args[0]
    if function == "float" and kind == "float":
        return args[0]
    if function in ("min", "max") and len(args) == 1:
        return args[0]
    if function in ("min", "max") and len(args) == 2 and same(args[0], args[1]):
        return args[0]
    if function in ("min", "max") and len(args) > 2:
        return call(function, call(function, *args[:-1]), args[-1])
    return Call(function, args)


def load(capture: str, index: tuple[Expr, ...], kind: Type) -> Expr:
    """``capture[index]``."""
    return Load(capture, index, kind)


def compare_all(conjuncts: list[Expr] | tuple[Expr, ...]) -> Expr | None:
    """The ``and`` of ``conjuncts`` in their order; None where there are none, or all are true."""
    result: Expr = TRUE
    for conjunct in conjuncts:
        result = binary("and", result, conjunct)
    return None if same(result, TRUE) else result


def rebuild(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """``expr`` of other operands through the constructors above."""
    if isinstance(expr, Unary):
        return unary(expr.op, parts[0])
    if isinstance(expr, Binary):
        return binary(expr.op, *parts)
    if isinstance(expr, Select):
        return select(*parts)
    if isinstance(expr, Call):
        return call(expr.function, *parts)
    if isinstance(expr, Named) and isinstance(plain(parts[0]), Const | Name):
        return plain(parts[0])  # a name for a constant or a name says nothing
    return with_children(expr, parts)


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """``expr`` with the names of ``values`` replaced, simplified."""
    done: dict[int, Expr] = {}
    for node in walk(expr):
        if isinstance(node, Name):
            done[id(node)] = values.get(node.id, node)
            continue
        parts = tuple(done[id(part)] for part in children(node))
        done[id(node)] = rebuild(node, parts)
    return done[id(expr)]


def simplify(expr: Expr) -> Expr:
    """``expr`` with every node built through the constructors above."""
    return substitute(expr, {})


def is_number(expr: Expr, value: float) -> bool:
    """Whether ``expr`` is a constant of that value, whatever its type."""
    inner = plain(expr)
    return isinstance(inner, Const) and inner.value == value and not math.isnan(value)
