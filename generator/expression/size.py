"""How large a program is with its lets written out: bounded, so that every pass is quick."""

from __future__ import annotations

from ..ir.nodes import Binary, Call, Expr, Load, Named, Select, Unary
from .errors import ExpressionError

MAX_NODES = 4096
MAX_LEVELS = 150  # recursive passes and dataclass hashes need a few of Python's frames for each


def check_size(expr: Expr, start: int, end: int) -> None:
    """Refuse an expression that its lets make huge: ``b = a + a``, ``c = b + b``, and so on.

    Raises:
        ExpressionError: over all characters from ``start`` to ``end``.
    """
    nodes, levels = _measure(expr, {})
    if nodes > MAX_NODES or levels > MAX_LEVELS:
        what = (f"{MAX_NODES} operations", nodes) if nodes > MAX_NODES else (
            f"{MAX_LEVELS} levels of nesting", levels)  # fmt: skip
        raise ExpressionError(
            f"expected at most {what[0]}, lets written out, got {what[1]}. Use fewer lets in lets.",
            start,
            end,
        )


def _measure(expr: Expr, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """(nodes, levels) of ``expr`` as a tree; each shared node is looked at once."""
    if id(expr) not in known:
        parts = [_measure(part, known) for part in _parts(expr)]
        nodes = 1 + sum(part[0] for part in parts)
        levels = 1 + max((part[1] for part in parts), default=0)
        known[id(expr)] = nodes, levels
    return known[id(expr)]


def _parts(expr: Expr) -> tuple[Expr, ...]:
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
    return expr.args if isinstance(expr, Call) else ()
