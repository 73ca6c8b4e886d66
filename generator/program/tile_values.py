"""Numbered nodes -> intervals over a box of positions, as C++ of host/interval.h."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ..ir.cpp import cast, integer_literal, type_in_cpp
from ..ir.graph import HEAD, Graph, Node
from ..ir.nodes import Binary, Call, Const, Load, Name, Select, Unary
from .data import TileBound
from .emit import Emitter, Scope

TILED_DIMS = ("seqlen_q", "seqlen_k", "total_q", "total_k")
_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "//": "floor_div", "%": "floor_mod"}
_CHOICES = {"min": "minimum", "max": "maximum", "clamp": "clamp", "abs": "absolute"}
Can = Callable[[Node, bool, str], str]
"""Whether a bool node can hold, or with True fail, within a box: a C++ expression."""


class TileValues:
    """The intervals of a classify_tile: statements go to its scope.

    Attributes:
        bounds: the per-tile bounds that were read, by name.
    """

    def __init__(self, emitter: Emitter, scope: Scope, can: Can) -> None:
        self.bounds: dict[str, TileBound] = {}
        self._emitter, self._scope, self._can = emitter, scope, can
        self._known: dict[tuple[int, str], str] = {}

    def interval(self, node: Node, box: str, to: str | None = None) -> str:
        """An Interval<to> that holds every value of ``node`` within ``box``."""
        own = element_type(node)
        key = (node.number, "" if isinstance(node.expr, Load) else box)
        if key not in self._known:
            text = self._interval(node, own, box)
            if node.parts and "(" in text and node.level != HEAD:
                name = self._scope.fresh(f"{self._emitter.name(node)}_range")
                self._scope.statements.append(f"const Interval<{own}> {name} = {text};")
                text = name
            self._known[key] = text
        text = self._known[key]
        return text if to is None or to == own else f"{text}.as<{to}>()"

    def _interval(self, node: Node, own: str, box: str) -> str:
        expr = node.expr
        if node.level == HEAD:
            (text,) = self._scope.print((node,))
            return f"interval::point<{own}>({cast(text, own).text})"
        if isinstance(expr, Name):
            positions = {"q_idx": "queries", "kv_idx": "keys"}
            return f"{box}.{positions[expr.id]}()" if expr.id in positions else unknown(node)
        if isinstance(expr, Load):
            return self.loaded(node, own) or unknown(node)
        if node.type == "bool":
            return f"interval::truth({self._can(node, True, box)}, {self._can(node, False, box)})"
        if isinstance(expr, Select):
            _, then, otherwise = self._emitter.graph.parts(node)
            hull = (self.interval(part, box, own) for part in (then, otherwise))
            return f"interval::hull({', '.join(hull)})"
        return self._operator(node, own, box) or unknown(node)

    def _operator(self, node: Node, own: str, box: str) -> str | None:
        expr, parts = node.expr, self._emitter.graph.parts(node)
        name: str | None = None
        if isinstance(expr, Unary):
            name = "negate"
        elif isinstance(expr, Binary):
            if node.type == "int":
                name, parts = self._integer(expr, parts)
        elif isinstance(expr, Call):
            if expr.function in ("int", "floor") and parts[0].type == "float":
                name = "to_int" if expr.function == "int" else "floor_to_int"
                return f"interval::{name}({self.interval(parts[0], box)})"
            if expr.function in ("int", "float"):
                return self.interval(parts[0], box, own)
            name = _CHOICES.get(expr.function)
        if name is None:
            return None
        wide = own if own == "Acc" else widest(own, *(element_type(part) for part in parts))
        if node.bounds.wraps and node.type == "int":
            name, wide = f"wrap_{name}", "int64_t"
        operands = ", ".join(self.interval(part, box, wide) for part in parts)
        text = f"interval::{name}({operands})"
        return text if wide == own else f"{text}.as<{own}>()"

    def _integer(
        self, expr: Binary, parts: tuple[Node, ...]
    ) -> tuple[str | None, tuple[Node, ...]]:
        """The helper of an operator on ints; a shift or a mask by a constant is a division."""
        name = _ARITHMETIC.get(expr.op)
        constant = parts[1].expr
        if name is None and isinstance(constant, Const) and isinstance(constant.value, int):
            other = as_division(expr.op, constant.value)
            if other is not None:
                name, divisor = other
                return name, (parts[0], self._emitter.graph.add(Const(divisor)))
        return name, parts

    def loaded(self, node: Node, own: str) -> str | None:
        """The bounds of a load at exactly the position; None where it is no such load."""
        found = tiled_index(self._emitter.graph, node)
        assert isinstance(node.expr, Load)
        capture = self._emitter.captures[node.expr.capture]
        if found is None or capture.dims[found[0]] not in TILED_DIMS:
            return None
        dim, side = found
        name = f"{capture.cpp_name}_{side}"
        self.bounds.setdefault(name, TileBound(name, capture, side, dim))
        others = [p for i, p in enumerate(self._emitter.graph.parts(node)) if i != dim]
        index = "".join(f", {text.text}" for text in self._scope.print(tuple(others)))
        tiles = f"bounds.{name}, bounds.num_{side}_tiles, {side}_tile"
        return f"interval::loaded<{own}, {dim}>({tiles}, args.{capture.cpp_name}{index})"


def element_type(node: Node) -> str:
    """The type of an interval's ends; a bool counts as 0 or 1."""
    kind = type_in_cpp(node)
    return "int" if kind == "bool" else kind


def widest(*types: str) -> str:
    """The widest of some element types."""
    if "Acc" in types:
        return "Acc"
    return "int64_t" if "int64_t" in types else "int"


def unknown(node: Node) -> str:
    """All that ``node``'s type and range allow."""
    own = element_type(node)
    if own == "Acc":
        return "interval::unknown<Acc>()"
    low, high = (integer_literal(end).text for end in (node.bounds.low, node.bounds.high))
    return f"Interval<{own}>{{{low}, {high}}}"


def as_division(op: str, value: int) -> tuple[str, int] | None:
    """``x >> 3`` and ``x & 7`` as a quotient and a remainder of 8; ``x << 3`` as a product."""
    if op == ">>" and 0 <= value < 62:
        return "floor_div", 1 << value
    if op == "<<" and 0 <= value < 62:
        return "mul", 1 << value
    if op == "&" and value > 0 and value & (value + 1) == 0 and value < 2**62:
        return "floor_mod", value + 1
    return None


def tiled_index(graph: Graph, node: Node) -> tuple[int, Literal["q", "kv"]] | None:
    """Which index of a load is a position, the others depending on the head; None for others."""
    sides: list[tuple[int, Literal["q", "kv"]]] = []
    for dim, part in enumerate(graph.parts(node)):
        if isinstance(part.expr, Name) and part.expr.id in ("q_idx", "kv_idx"):
            sides.append((dim, "q" if part.expr.id == "q_idx" else "kv"))
        elif part.level != HEAD:
            return None
    return sides[0] if len(sides) == 1 else None
