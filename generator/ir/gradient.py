"""Expression -> its derivatives by reverse mode, as expressions of the same language.

Where a function has no derivative it gets the subgradient that PyTorch uses: equal operands of a
``min`` have half each, ``abs`` has 0 at 0, a clamp passes at its ends. A division by 0 is the
constant 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .build import binary, call, select, unary
from .nodes import Binary, Call, Const, Expr, Load, Name, Named, Select, Unary
from .types import children, label, plain, type_of, walk, with_children

_LN2 = math.log(2.0)


def derivatives(root: Expr, seed: Expr, wanted: Sequence[Expr]) -> tuple[Expr | None, ...]:
    """``seed`` times the derivative of ``root`` by each of ``wanted``; None where it is 0.

    Args:
        root: an expression of type float.
        seed: the derivative of the whole by ``root``.
        wanted: names and loads; an equal load anywhere in ``root`` is the same variable.
    """
    order, merged = _merged(root)
    targets = {merged.get(_identity(node)) for node in wanted}
    reaching: set[int] = {id(node) for node in order if id(node) in targets}
    for node in order:
        if any(id(part) in reaching for part in children(node)) and type_of(node) == "float":
            reaching.add(id(node))
    adjoints: dict[int, Expr] = {id(order[-1]): seed} if id(order[-1]) in reaching else {}
    for node in reversed(order):
        adjoint = adjoints.get(id(node))
        if adjoint is None:
            continue
        for part, term in _pull_back(node, adjoint):
            if id(part) in reaching:
                known = adjoints.get(id(part))
                adjoints[id(part)] = term if known is None else binary("+", known, term)
    found = [adjoints.get(merged.get(_identity(node), 0)) for node in wanted]
    return tuple(found)


def _identity(node: Expr) -> tuple[object, ...]:
    node = plain(node)
    return (*label(node), *(_identity(part) for part in children(node)))


def _merged(root: Expr) -> tuple[list[Expr], dict[tuple[object, ...], int]]:
    """The nodes below ``root`` in order, equal names and loads being one object."""
    leaves: dict[tuple[object, ...], Expr] = {}
    done: dict[int, Expr] = {}
    for node in walk(root):
        if isinstance(node, Name | Load):
            done[id(node)] = leaves.setdefault(_identity(node), node)
        else:
            parts = tuple(done[id(part)] for part in children(node))
            unchanged = all(a is b for a, b in zip(parts, children(node), strict=True))
            done[id(node)] = node if unchanged else with_children(node, parts)
    top = done[id(root)]
    return list(walk(top)), {key: id(node) for key, node in leaves.items()}


def _pull_back(node: Expr, g: Expr) -> Iterator[tuple[Expr, Expr]]:
    """(operand, g times the derivative of ``node`` by it) for each float operand."""
    if isinstance(node, Named):
        yield node.expr, g
    elif isinstance(node, Unary):
        yield node.operand, unary("-", g)
    elif isinstance(node, Select):
        zero = Const(0.0)
        yield node.then, select(node.condition, g, zero)
        yield node.otherwise, select(node.condition, zero, g)
    elif isinstance(node, Binary):
        yield from _pull_back_binary(node, g)
    elif isinstance(node, Call):
        yield from _pull_back_call(node, g)


def _pull_back_binary(node: Binary, g: Expr) -> Iterator[tuple[Expr, Expr]]:
    a, b = node.left, node.right
    if node.op in ("+", "-"):
        yield a, g
        yield b, g if node.op == "+" else unary("-", g)
    elif node.op == "*":
        yield a, binary("*", g, b)
        yield b, binary("*", g, a)
    elif node.op == "/":
        yield a, binary("/", g, b)
        yield b, unary("-", binary("/", binary("*", g, node), b))
    elif node.op == "%":
        exists = binary("!=", b, Const(0.0))
        yield a, select(exists, g, Const(0.0))
        yield b, unary("-", binary("*", g, binary("//", a, b)))


def _pull_back_call(node: Call, g: Expr) -> Iterator[tuple[Expr, Expr]]:
    zero = Const(0.0)
    if node.function in ("min", "max"):
        a, b = node.args
        half = binary("*", g, Const(0.5))
        wins = "<" if node.function == "min" else ">"
        tie = binary("==", a, b)
        yield a, select(binary(wins, a, b), g, select(tie, half, zero))
        yield b, select(binary(wins, b, a), g, select(tie, half, zero))
    elif node.function == "clamp":
        x, low, high = node.args
        ordered = binary("<=", low, high)
        inside = binary("and", binary("<=", low, x), binary("<=", x, high))
        below = binary("and", binary("<", x, low), binary("<", low, high))
        above = binary("or", binary(">", x, high), unary("not", ordered))
        yield x, select(inside, g, zero)
        yield low, select(below, g, zero)
        yield high, select(above, g, zero)
    else:
        term = _slope(node.function, node, node.args[0], g)
        if term is not None:
            yield node.args[0], term


def _slope(function: str, y: Expr, x: Expr, g: Expr) -> Expr | None:
    """``g`` times dy/dx of a function of one operand; None where that is 0."""
    one = Const(1.0)
    if function == "float":
        return g
    if function in ("log", "log2", "sqrt"):
        divisor = {
            "log": x,
            "log2": binary("*", x, Const(_LN2)),
            "sqrt": binary("*", Const(2.0), y),
        }
        return binary("/", g, divisor[function])
    if function == "abs":
        zero = Const(0.0)
        negative = select(binary("<", x, zero), unary("-", g), zero)
        return select(binary(">", x, zero), g, negative)
    factors = {
        "exp": y,
        "exp2": binary("*", y, Const(_LN2)),
        "tanh": binary("-", one, binary("*", y, y)),
        "sigmoid": binary("*", y, binary("-", one, y)),
        "rsqrt": binary("*", Const(-0.5), binary("*", y, binary("*", y, y))),
        "sin": call("cos", x),
        "cos": unary("-", call("sin", x)),
    }
    return binary("*", g, factors[function]) if function in factors else None
