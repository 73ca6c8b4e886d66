"""Expressions -> numbered nodes: equal subexpressions share one, with type, level, range, cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .nodes import Binary, Call, Const, Expr, Load, Name, Named, Select, Type
from .ranges import Bounds, range_of
from .types import children, label, type_of, walk

HEAD, ROW, COLUMN, SCORE = 0, 1, 2, 4
ELEMENT = ROW | COLUMN | SCORE
"""Levels are sets of what a value depends on: q_idx, kv_idx, score. The empty set is the head."""
_LEVELS = {"q_idx": ROW, "kv_idx": COLUMN, "score": SCORE, "dscore": SCORE}
WIDE_COST = 4  # instructions more for a clamp of 64 bits
_CALL_COST = {"abs": 1, "min": 1, "max": 1, "clamp": 2, "float": 1, "int": 2, "floor": 2}


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a program.

    Attributes:
        number: its place in the graph; operands come first.
        expr: an expression of it.
        parts: numbers of the operands.
        type: of the value.
        level: what it depends on, a set of ROW, COLUMN and SCORE.
        bounds: the integers it can be; FULL for a float.
        cost: about how many instructions it takes, operands included.
    """

    number: int
    expr: Expr
    parts: tuple[int, ...]
    type: Type
    level: int
    bounds: Bounds
    cost: int


class Graph:
    """Value numbering: ``add`` gives equal expressions the same node."""

    def __init__(self, load_range: Callable[[str], Bounds]) -> None:
        """A graph without nodes; ``load_range(capture)`` is the range of a capture's elements."""
        self.nodes: list[Node] = []
        self.names: dict[int, str] = {}
        self._load_range = load_range
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[int, tuple[Expr, int]] = {}  # the Expr keeps its id from reuse

    def add(self, root: Expr) -> Node:
        """The node of ``root``; a ``let``'s name becomes the name of its node."""
        for expr in walk(root):
            if id(expr) in self._known:
                continue
            parts = tuple(self._known[id(part)][1] for part in children(expr))
            if isinstance(expr, Named):
                number = parts[0]
                self.names.setdefault(number, expr.id)
            else:
                number = self._number(expr, parts)
            self._known[id(expr)] = (expr, number)
        return self.nodes[self._known[id(root)][1]]

    def _number(self, expr: Expr, parts: tuple[int, ...]) -> int:
        key = (*label(expr), *parts)
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(self._node(expr, parts))
        return self._numbers[key]

    def _node(self, expr: Expr, parts: tuple[int, ...]) -> Node:
        nodes = [self.nodes[part] for part in parts]
        level = _LEVELS.get(expr.id, HEAD) if isinstance(expr, Name) else HEAD
        for node in nodes:
            level |= node.level
        loaded = self._load_range(expr.capture) if isinstance(expr, Load) else Bounds(0, 0)
        bounds = range_of(expr, tuple(node.bounds for node in nodes), loaded)
        cost = min(own_cost(expr) + sum(node.cost for node in nodes), 1_000_000)
        if isinstance(expr, Call) and expr.function == "clamp" and bounds.is_32_bit:
            cost += 0 if all(node.bounds.is_32_bit for node in nodes) else WIDE_COST
        return Node(len(self.nodes), expr, parts, type_of(expr), level, bounds, cost)

    def parts(self, node: Node) -> tuple[Node, ...]:
        """The operands of ``node``."""
        return tuple(self.nodes[part] for part in node.parts)


def own_cost(expr: Expr) -> int:
    """About how many instructions a node adds to its operands'."""
    if isinstance(expr, Const | Name | Named):
        return 0
    if isinstance(expr, Load):
        return 8
    if isinstance(expr, Binary) and expr.op in ("/", "//", "%"):
        divisor = expr.right
        if isinstance(divisor, Const) and isinstance(divisor.value, int):
            return 1 if divisor.value & (divisor.value - 1) == 0 else 4
        return 8
    if isinstance(expr, Call):
        return _CALL_COST.get(expr.function, 8)
    return 1 if not isinstance(expr, Select) else 2
