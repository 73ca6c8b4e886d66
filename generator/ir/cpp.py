"""Numbered nodes -> C++ expressions, for g++ and nvcc alike; helpers are of host/program_math.h.

Python's meaning is kept: int64 arithmetic where 32 bits could overflow, floors, guarded divisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .fold import INT64_MIN
from .graph import Node
from .nodes import Binary, Call, Const, Load, Name, Select, Unary
from .ranges import Bounds
from .types import COMPARISONS

Accumulator = Literal["float", "double"]
PRIMARY = 100
_PRECEDENCE = {
    "?": 1, "or": 2, "and": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7,
    "<": 8, "<=": 8, ">": 8, ">=": 8, "<<": 9, ">>": 9, "+": 10, "-": 10,
    "*": 11, "/": 11, "%": 11, "unary": 12,
}  # fmt: skip
_TOKEN = {"and": "&&", "or": "||"}
# operands that g++ wants in parentheses though the grammar does not
_WARNED = ("or", "|", "^", "&", "<<", ">>", *COMPARISONS)


@dataclass(frozen=True, slots=True)
class Text:
    """A C++ expression: its text, how tightly its outermost operator binds, and its type."""

    text: str
    binds: int
    type: str  # bool, int, int64_t or Acc

    def within(self, level: int) -> str:
        """The text as an operand of an operator that binds as tightly as ``level``."""
        return f"({self.text})" if self.binds < level else self.text


def type_in_cpp(node: Node) -> str:
    """``bool``, ``int`` where the value always fits 32 bits, ``int64_t``, or ``Acc``."""
    if node.type == "int":
        return "int" if node.bounds.is_32_bit else "int64_t"
    return "Acc" if node.type == "float" else "bool"


def integer_literal(value: int) -> Text:
    """An int of C++ where it fits, else an int64_t."""
    if value == INT64_MIN:
        return Text("INT64_MIN", PRIMARY, "int64_t")
    if not -(2**31) < value < 2**31:
        return Text(f"int64_t{{{value}}}", PRIMARY, "int64_t")
    return Text(str(value), PRIMARY if value >= 0 else _PRECEDENCE["unary"], "int")


def real_literal(value: float, accumulator: Accumulator) -> Text:
    """A literal of the accumulator's type, rounded once."""
    if value != value or value in (float("inf"), float("-inf")):
        text = "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"
        return Text(f"Acc({text})", PRIMARY, "Acc")
    text = repr(float(value)) + ("f" if accumulator == "float" else "")
    if accumulator == "float" and abs(value) > 3.4028235677973366e38:
        text = "INFINITY" if value > 0 else "-INFINITY"
    return Text(text, _PRECEDENCE["unary"] if text.startswith("-") else PRIMARY, "Acc")


def cast(text: Text, to: str) -> Text:
    """``text`` converted to type ``to``; itself where it has that type."""
    if text.type == to:
        return text
    if to == "int64_t" and text.type == "int":
        return Text(f"int64_t{{{text.text}}}", PRIMARY, to)
    return Text(f"static_cast<{to}>({text.text})", PRIMARY, to)


def print_node(
    node: Node, nodes: tuple[Node, ...], parts: tuple[Text, ...], accumulator: Accumulator
) -> Text:
    """The C++ of an operator, function or constant over the texts of its operands.

    Names and loads depend on the function that is printed: they are the caller's.

    Args:
        node: what to print.
        nodes: its operands.
        parts: their texts.
        accumulator: the type of float arithmetic.
    """
    expr = node.expr
    if isinstance(expr, Const):
        if isinstance(expr.value, bool):
            return Text("true" if expr.value else "false", PRIMARY, "bool")
        if isinstance(expr.value, int):
            return integer_literal(expr.value)
        return real_literal(expr.value, accumulator)
    assert not isinstance(expr, Name | Load)
    if node.type == "float":
        parts = tuple(_as_real(n, text, accumulator) for n, text in zip(nodes, parts, strict=True))
    if isinstance(expr, Unary):
        return _print_unary(expr, node, parts[0])
    if isinstance(expr, Select):
        return _print_select(node, parts)
    if isinstance(expr, Call):
        return _print_call(expr, node, nodes, parts)
    assert isinstance(expr, Binary)
    if expr.op in ("and", "or") or expr.op in COMPARISONS:
        return _infix(expr.op, parts[0], parts[1], "bool")
    if node.type == "float":
        return _print_real(expr.op, nodes, parts)
    return _print_integer(expr.op, node, nodes, parts)


def _as_real(node: Node, text: Text, accumulator: Accumulator) -> Text:
    """An integer constant beside floats is a literal of theirs."""
    if isinstance(node.expr, Const) and node.type == "int":
        return real_literal(float(node.expr.value), accumulator)
    return text


def _infix(op: str, left: Text, right: Text, result: str) -> Text:
    level = _PRECEDENCE[op]
    careful = PRIMARY if op in ("|", "^", "&", "<<", ">>") else level
    if op in ("==", "!="):
        careful = _PRECEDENCE["<<"]
    if op == "or":
        careful = _PRECEDENCE["and"] + 1
        left = Text(left.text, PRIMARY, left.type) if left.binds == level else left
    unary = _PRECEDENCE["unary"]
    first = left.within(min(careful, unary) if careful == PRIMARY else careful)
    second = right.within(unary if careful == PRIMARY else max(careful, level + 1))
    return Text(f"{first} {_TOKEN.get(op, op)} {second}", level, result)


def _print_unary(expr: Unary, node: Node, part: Text) -> Text:
    level = _PRECEDENCE["unary"]
    if expr.op == "not":
        return Text(f"!{part.within(level + 1)}", level, "bool")
    result = type_in_cpp(node)
    if node.bounds.wraps and node.type == "int":
        return Text(f"math::wrap_sub(0, {part.text})", PRIMARY, "int64_t")
    if node.type == "int":
        part = cast(part, "int" if result == "int" and part.type != "int64_t" else "int64_t")
    negated = Text(f"-{part.within(level + 1)}", level, part.type)
    return cast(negated, result) if node.type == "int" else negated


def _print_select(node: Node, parts: tuple[Text, ...]) -> Text:
    condition, then, otherwise = parts
    result = type_in_cpp(node)
    if result != "Acc" and {then.type, otherwise.type} <= {"int", "int64_t"}:
        then, otherwise = cast(then, result), cast(otherwise, result)
    level = _PRECEDENCE["?"]
    text = f"{condition.within(2)} ? {then.within(2)} : {otherwise.within(level)}"
    return Text(text, level, result)


def _print_real(op: str, nodes: tuple[Node, ...], parts: tuple[Text, ...]) -> Text:
    left, right = parts
    if op in ("//", "%"):
        name = "floor_div" if op == "//" else "floor_mod"
        return _helper(name, cast(left, "Acc"), cast(right, "Acc"), result="Acc")
    if left.type != "Acc" and right.type != "Acc":
        left = cast(left, "Acc")
    if op == "/" and not _nonzero(nodes[1]):
        return _helper("divide", cast(left, "Acc"), cast(right, "Acc"), result="Acc")
    return _infix(op, left, right, "Acc")


def _nonzero(node: Node) -> bool:
    if node.type != "float":
        return not node.bounds.has_zero
    return isinstance(node.expr, Const) and node.expr.value != 0


def _helper(name: str, *parts: Text, result: str) -> Text:
    return Text(f"math::{name}({', '.join(part.text for part in parts)})", PRIMARY, result)


def _print_integer(op: str, node: Node, nodes: tuple[Node, ...], parts: tuple[Text, ...]) -> Text:
    result = type_in_cpp(node)
    wide = "int64_t" in (result, parts[0].type, parts[1].type)
    left, right = parts
    if op in ("&", "|", "^"):
        if node.type == "bool":
            left, right = (Text(p.text, p.binds, "bool") for p in parts)
        return cast(_infix(op, left, right, _common(left, right, node)), result)
    if op in ("<<", ">>"):
        return cast(_shift(op, node, nodes, parts), result)
    if op in ("//", "%"):
        return cast(_floor(op, nodes, parts), result)
    if node.bounds.wraps:
        name = {"+": "wrap_add", "-": "wrap_sub", "*": "wrap_mul"}[op]
        return _helper(name, left, right, result="int64_t")
    if wide and "int64_t" not in (left.type, right.type):
        left = cast(left, "int64_t")
    return cast(_infix(op, left, right, "int64_t" if wide else "int"), result)


def _common(left: Text, right: Text, node: Node) -> str:
    if node.type == "bool":
        return "bool"
    return "int64_t" if "int64_t" in (left.type, right.type) else "int"


def _shift(op: str, node: Node, nodes: tuple[Node, ...], parts: tuple[Text, ...]) -> Text:
    count = nodes[1].bounds
    wide = "int64_t" in (type_in_cpp(node), parts[0].type)
    if count.low == count.high and 0 <= count.low < (64 if wide else 32):
        left = cast(parts[0], "int64_t") if wide else parts[0]
        if op == ">>" or (nodes[0].bounds.low >= 0 and not node.bounds.wraps):
            return _infix(op, left, parts[1], "int64_t" if wide else "int")
    name = "shift_left" if op == "<<" else "shift_right"
    return _helper(name, *parts, result="int64_t")


def _floor(op: str, nodes: tuple[Node, ...], parts: tuple[Text, ...]) -> Text:
    left, right = (cast(part, "int") if part.type == "bool" else part for part in parts)
    common = "int64_t" if "int64_t" in (left.type, right.type) else "int"
    divisor: Bounds = nodes[1].bounds
    if divisor.low == divisor.high and divisor.low > 0 and divisor.low & (divisor.low - 1) == 0:
        # shifts and masks floor, whatever the sign
        if op == "//":
            return _infix(">>", left, integer_literal(divisor.low.bit_length() - 1), left.type)
        return _infix("&", left, integer_literal(divisor.low - 1), left.type)
    if divisor.low > 0 and nodes[0].bounds.low >= 0:
        return _infix("/" if op == "//" else "%", left, right, common)
    return _helper("floor_div" if op == "//" else "floor_mod", left, right, result=common)


_CHOICES = {"min": "minimum", "max": "maximum", "clamp": "clamp", "abs": "absolute"}


def _print_call(expr: Call, node: Node, nodes: tuple[Node, ...], parts: tuple[Text, ...]) -> Text:
    result = type_in_cpp(node)
    if expr.function in _CHOICES:
        if node.type == "float":
            return _helper(_CHOICES[expr.function], *(cast(p, "Acc") for p in parts), result="Acc")
        wide = "int64_t" if "int64_t" in (result, *(p.type for p in parts)) else "int"
        chosen = (cast(part, wide) for part in parts)
        return cast(_helper(_CHOICES[expr.function], *chosen, result=wide), result)
    if expr.function == "float":
        return cast(parts[0], "Acc")
    if expr.function in ("int", "floor"):
        if nodes[0].type != "float":
            return cast(parts[0], result)
        name = "to_int" if expr.function == "int" else "floor_to_int"
        return _helper(name, parts[0], result="int64_t")
    return _helper(expr.function, cast(parts[0], "Acc"), result="Acc")
