"""Score and mask as they are meant -> as they are quick to compute.

What changes is rounding of what depends on ``score``, never a discrete value: a division by what
the head decides becomes a product, the factors of a product are grouped by what they depend on,
and a 64-bit number that the head decides is compared as a 32-bit one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Binary, Call, Const, Expr, Unary, binary, unary
from ..ir.build import rebuild
from ..ir.graph import HEAD, SCORE, Graph
from ..ir.ranges import INT32_MAX, INT32_MIN
from ..ir.types import COMPARISONS, children, plain, walk


def quick(root: Expr, graph: Graph) -> Expr:
    """``root`` in its quick form; levels and ranges are looked up in ``graph``."""
    done: dict[int, Expr] = {}
    for node in walk(root):
        parts = tuple(done[id(part)] for part in children(node))
        unchanged = all(a is b for a, b in zip(parts, children(node), strict=True))
        found = node if unchanged else rebuild(node, parts)
        if isinstance(found, Binary) and found.op in COMPARISONS:
            found = _compared(found, graph)
        elif _is_product(found) and graph.add(found).level & SCORE:
            found = _product(found, graph)
        done[id(node)] = found
    return done[id(root)]


def _compared(node: Binary, graph: Graph) -> Expr:
    """A 32-bit side against the head's 64-bit one: values beyond the side's range are alike."""
    left, right = graph.add(node.left), graph.add(node.right)
    for narrow, wide in ((left, right), (right, left)):
        low, high = narrow.bounds.low - 1, narrow.bounds.high + 1
        if narrow.level == HEAD or wide.level != HEAD or wide.bounds.is_32_bit:
            continue
        if narrow.type != "int" or wide.type != "int" or low < INT32_MIN or high > INT32_MAX:
            continue
        clamped = Call("clamp", (wide.expr, Const(low), Const(high)))
        name = graph.names.get(wide.number)
        if name is not None:
            graph.names.setdefault(graph.add(clamped).number, name)
        sides = (node.left, clamped) if wide is right else (clamped, node.right)
        return Binary(node.op, *sides)
    return node


def _is_product(node: Expr) -> bool:
    return isinstance(node, Binary) and node.op in ("*", "/")


def _product(node: Expr, graph: Graph) -> Expr:
    """The factors of a product, its constants folded, those of the head together."""
    factors: list[Expr] = []
    constant = _factors(node, factors, graph)
    head = [factor for factor in factors if graph.add(factor).level == HEAD]
    others = [factor for factor in factors if graph.add(factor).level != HEAD]
    if not others:
        return node
    scale = _joined(head)
    if scale is not None and abs(constant) != 1.0:
        scale, constant = binary("*", scale, Const(constant)), 1.0
    result = _joined(others)
    assert result is not None
    if scale is not None:
        result = binary("*", result, scale)
    elif abs(constant) != 1.0:
        result, constant = binary("*", result, Const(constant)), 1.0
    return unary("-", result) if constant < 0 else result


def _factors(node: Expr, factors: list[Expr], graph: Graph) -> float:
    """Appends the factors of ``node`` that are no constants; the product of those that are."""
    inner = plain(node)
    if isinstance(inner, Const):
        return float(inner.value)
    if isinstance(inner, Unary) and inner.op == "-" and graph.add(inner).type == "float":
        return -_factors(inner.operand, factors, graph)
    if node is inner and isinstance(inner, Binary) and graph.add(inner).type == "float":
        if inner.op == "*":
            left = _factors(inner.left, factors, graph)
            return left * _factors(inner.right, factors, graph)
        if inner.op == "/" and graph.add(inner.right).level == HEAD:
            divisor = plain(inner.right)
            if isinstance(divisor, Const):
                return _factors(inner.left, factors, graph) * _inverse(float(divisor.value))
            left = _factors(inner.left, factors, graph)
            factors.append(binary("/", Const(1.0), inner.right))
            return left
    factors.append(node)
    return 1.0


def _inverse(value: float) -> float:
    return 1.0 / value if value else 0.0


def _joined(factors: Sequence[Expr]) -> Expr | None:
    result: Expr | None = None
    for factor in factors:
        result = factor if result is None else binary("*", result, factor)
    return result
