"""Mask -> the body of classify_tile: which answers are possible within a tile.

A tile is empty where the mask can't hold, and full where it can't fail. An ``or`` can hold if one
part can; an ``and`` if every part can within the box of positions that its linear parts leave.
Values are intervals over that box.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..ir import Binary, Const, Expr, Load, Select, Unary, type_of
from ..ir.graph import ELEMENT, HEAD, Node
from ..ir.types import COMPARISONS, children, plain
from .band import Limit, limits_of
from .data import Function, TileBound
from .emit import Emitter, Scope
from .tile_values import TileValues, element_type, widest

_CAN = {
    ("<", False): ("can_be_less", False), (">", False): ("can_be_less", True),
    ("<=", False): ("can_be_at_most", False), (">=", False): ("can_be_at_most", True),
    ("<", True): ("can_fail_less", False), (">", True): ("can_fail_less", True),
    ("<=", True): ("can_fail_at_most", False), (">=", True): ("can_fail_at_most", True),
    ("==", False): ("can_be_equal", False), ("!=", True): ("can_be_equal", False),
    ("==", True): ("can_be_unequal", False), ("!=", False): ("can_be_unequal", False),
}  # fmt: skip
"""Helper of (comparison, whether it is to fail), and whether its operands change places."""
_TILE = re.compile(r"\btile\b")
_CLIPS = {
    (0, 1): "keys_to", (0, -1): "keys_from", (1, 0): "queries_to", (-1, 0): "queries_from",
    (-1, 1): "distance_to", (1, -1): "distance_from",
}  # fmt: skip
"""What a limit with these coefficients of q_idx and kv_idx leaves of a box."""


@dataclass(frozen=True, slots=True)
class Literal:
    """``expr``, or its opposite."""

    expr: Expr
    negated: bool = False


def classify(emitter: Emitter, mask: Expr) -> tuple[Function, tuple[TileBound, ...]]:
    """The body of classify_tile, and the bounds of captures that it reads."""
    scope = Scope(emitter, ELEMENT)
    printer = _Printer(emitter, scope)
    holds = parenthesised(printer.can(Literal(mask), "tile"))
    fails = parenthesised(printer.can(Literal(mask, True), "tile"))
    lines = [*scope.statements, f"if (!{holds}) return TileClass::kEmpty;"]
    result = f"{fails} ? TileClass::kPartial : TileClass::kFull"
    if any(_TILE.search(line) for line in (*lines, result)):
        lines.insert(0, "const Box tile = {q_first, q_last, kv_first, kv_last};")
    return Function(tuple(lines), result), tuple(printer.values.bounds.values())


def parenthesised(condition: str) -> str:
    """``condition`` in one pair of parentheses."""
    depth = 0
    for i, character in enumerate(condition):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return condition if i == len(condition) - 1 > 0 else f"({condition})"
    return f"({condition})"


def parts_of(literal: Literal) -> tuple[str, tuple[Literal, ...]]:
    """("and" or "or", what it joins), or ("", itself) for what joins nothing."""
    expr, negated = plain(literal.expr), literal.negated
    if isinstance(expr, Unary) and expr.op == "not":
        return parts_of(Literal(expr.operand, not negated))
    if isinstance(expr, Select) and type_of(expr) == "bool":
        condition = expr.condition
        then = Binary("and", condition, _signed(expr.then, negated))
        otherwise = Binary("and", Unary("not", condition), _signed(expr.otherwise, negated))
        return "or", (Literal(then), Literal(otherwise))
    if not isinstance(expr, Binary) or any(type_of(part) != "bool" for part in children(expr)):
        return "", (Literal(expr, negated),)
    if expr.op in ("and", "or", "&", "|"):
        joins = (expr.op in ("and", "&")) is not negated
        parts = tuple(Literal(part, negated) for part in children(expr))
        return "and" if joins else "or", parts
    if expr.op in ("==", "!=", "^"):
        equal = (expr.op == "==") is not negated
        both = Binary("and", expr.left, _signed(expr.right, not equal))
        neither = Binary("and", Unary("not", expr.left), _signed(expr.right, equal))
        return "or", (Literal(both), Literal(neither))
    return "", (Literal(expr, negated),)


def _signed(expr: Expr, negated: bool) -> Expr:
    return Unary("not", expr) if negated else expr


class _Printer:
    """One classify_tile being printed."""

    def __init__(self, emitter: Emitter, scope: Scope) -> None:
        self.scope = scope
        self.values = TileValues(emitter, scope, self._can_node)
        self._emitter = emitter

    def _can_node(self, node: Node, fail: bool, box: str) -> str:
        return self.can(Literal(node.expr, fail), box)

    def can(self, literal: Literal, box: str) -> str:
        """Whether ``literal`` can hold somewhere in ``box``: a C++ expression in parentheses."""
        kind, parts = parts_of(literal)
        if kind == "or":
            return f"({' || '.join(self.can(part, box) for part in parts)})"
        return self._all(self._flat(parts), box)

    def _flat(self, literals: tuple[Literal, ...]) -> list[Literal]:
        found: list[Literal] = []
        for literal in literals:
            kind, parts = parts_of(literal)
            if kind == "and":
                found += self._flat(parts)
            else:
                found.append(literal if kind else parts[0])
        return found

    def _all(self, literals: list[Literal], box: str) -> str:
        """Whether all of ``literals`` can hold in one place, as far as boxes and intervals see."""
        clips: list[tuple[str, Expr]] = []
        rest = []
        for literal in literals:
            limits = self._clips(literal)
            if limits is None:
                rest.append(literal)
            else:
                clips += limits
        conditions = []
        if clips:
            box = self._clipped(box, clips)
            conditions.append(f"{box}.any()")
        conditions += [self._one(literal, box) for literal in rest]
        return conditions[0] if len(conditions) == 1 else f"({' && '.join(conditions)})"

    def _clips(self, literal: Literal) -> list[tuple[str, Expr]] | None:
        limits = limits_of(_signed(literal.expr, literal.negated), self._emitter.graph)
        if limits is None or any((x.form.q, x.form.kv) not in _CLIPS for x in limits):
            return None
        return [(_CLIPS[x.form.q, x.form.kv], _bound(x)) for x in limits]

    def _clipped(self, box: str, clips: list[tuple[str, Expr]]) -> str:
        # distances last: they carry the bounds of one side over to the other
        clips = sorted(clips, key=lambda clip: clip[0].startswith("distance"))
        calls = ""
        for name, bound in clips:
            (text,) = self.scope.print((self._emitter.graph.add(bound),))
            calls += f".{name}({text.text})"
        name = self.scope.fresh("box")
        self.scope.statements.append(f"const Box {name} = {box}{calls};")
        return name

    def _one(self, literal: Literal, box: str) -> str:
        kind, parts = parts_of(literal)
        if kind:
            return self.can(literal, box)
        expr, negated = parts[0].expr, parts[0].negated
        node = self._emitter.graph.add(expr)
        if isinstance(expr, Const):
            return "false" if bool(expr.value) is negated else "true"
        if node.level == HEAD:
            (text,) = self.scope.print((node,))
            return f"!({text.text})" if negated else text.within(4)
        if isinstance(expr, Binary) and expr.op in COMPARISONS:
            return self._comparison(expr, negated, box)
        if isinstance(expr, Load):
            return self._load(expr, node, negated, box)
        return "true"

    def _comparison(self, expr: Binary, negated: bool, box: str) -> str:
        name, swapped = _CAN[expr.op, negated]
        nodes = [self._emitter.graph.add(part) for part in (expr.left, expr.right)]
        common = widest(*(element_type(node) for node in nodes))
        left, right = (self.values.interval(node, box, common) for node in nodes)
        if swapped:
            left, right = right, left
        return f"interval::{name}({left}, {right})"

    def _load(self, expr: Load, node: Node, negated: bool, box: str) -> str:
        capture = self._emitter.captures[expr.capture]
        if capture.block is not None:
            b, h = self.scope.print(tuple(self._emitter.graph.parts(node)[:2]))
            rows, columns = capture.block
            where = f"args.{capture.cpp_name}, {b.text}, {h.text}, {box}, {rows}, {columns}"
            return f"interval::some_block_is({'false' if negated else 'true'}, {where})"
        if self.values.loaded(node, "int") is None:
            return "true"
        interval = self.values.interval(node, box)
        return f"{interval}.lo == 0" if negated else f"{interval}.hi != 0"


def _bound(limit: Limit) -> Expr:
    upper = limit.form.kv == 1 or (limit.form.q == 1 and limit.form.kv == 0)
    return limit.bound if upper else limit.form.rest
