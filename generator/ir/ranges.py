"""Expression -> the integers that it can be, from the ranges of the names in scope."""

from __future__ import annotations

from dataclasses import dataclass

from .fold import INT64_MAX, INT64_MIN, apply_binary, apply_call
from .nodes import Binary, Call, Const, Expr, Load, Name, Select, Unary
from .types import type_of

MAX_SEQLEN = 2**30
"""Positions lie in [0, MAX_SEQLEN), so that sums and differences of two are 32-bit ints."""
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """low <= value <= high; ``wraps`` where the exact result may leave int64."""

    low: int
    high: int
    wraps: bool = False

    @property
    def is_32_bit(self) -> bool:
        """Whether every value is an int of C++."""
        return INT32_MIN <= self.low and self.high <= INT32_MAX

    @property
    def has_zero(self) -> bool:
        """Whether 0 is among the values."""
        return self.low <= 0 <= self.high


FULL = Bounds(INT64_MIN, INT64_MAX)
BOOL = Bounds(0, 1)
_SIZE, _POSITION, _COUNT = Bounds(0, MAX_SEQLEN), Bounds(0, MAX_SEQLEN - 1), Bounds(0, INT32_MAX)
NAMES = {
    "q_idx": _POSITION,
    "kv_idx": _POSITION,
    "q_len": _SIZE,
    "kv_len": _SIZE,
    "b": _COUNT,
    "h": _COUNT,
    "h_kv": _COUNT,
    "num_heads": Bounds(1, INT32_MAX),
    "window_left": _SIZE,
    "window_right": _SIZE,
}
MAX_PARAM = 2**62
"""Run-time int params lie within, so that a position and one of them never overflow."""
_PARAM = Bounds(-MAX_PARAM, MAX_PARAM)
DTYPES = {"bool": BOOL, "int32": Bounds(INT32_MIN, INT32_MAX)}


def range_of(expr: Expr, parts: tuple[Bounds, ...], load_range: Bounds) -> Bounds:
    """The integers that ``expr`` can be, given those of its operands.

    Args:
        expr: the node; one of type float has the range FULL.
        parts: the ranges of its operands, in order.
        load_range: the range of the capture's dtype where ``expr`` is a Load.
    """
    if isinstance(expr, Const):
        whole = isinstance(expr.value, int)
        return Bounds(int(expr.value), int(expr.value)) if whole else FULL
    if isinstance(expr, Name):
        return NAMES.get(expr.id, _PARAM if expr.type == "int" else FULL)
    if type_of(expr) == "float":
        return FULL
    if isinstance(expr, Load):
        return load_range
    if isinstance(expr, Unary):
        return BOOL if expr.op == "not" else _exact([-parts[0].low, -parts[0].high])
    if isinstance(expr, Select):
        return Bounds(min(parts[1].low, parts[2].low), max(parts[1].high, parts[2].high))
    if isinstance(expr, Binary):
        return BOOL if type_of(expr) == "bool" else _range_of_binary(expr.op, *parts)
    return _range_of_call(expr, parts) if isinstance(expr, Call) else parts[0]


def _exact(ends: list[int]) -> Bounds:
    """The hull of ``ends``; anything where it leaves int64, since results wrap."""
    low, high = min(ends), max(ends)
    if low < INT64_MIN or high > INT64_MAX:
        return Bounds(INT64_MIN, INT64_MAX, wraps=True)
    return Bounds(low, high)


def _range_of_binary(op: str, a: Bounds, b: Bounds) -> Bounds:
    if op == "+":
        return _exact([a.low + b.low, a.high + b.high])
    if op == "-":
        return _exact([a.low - b.high, a.high - b.low])
    if op == "*":
        return _exact([x * y for x in (a.low, a.high) for y in (b.low, b.high)])
    if op == "//":
        return _quotient(a, b)
    if op == "%":
        # the sign of the divisor; no larger than a dividend of the same sign
        low = min(0, b.low + 1) if b.low < 0 else 0
        high = max(0, b.high - 1)
        if a.low >= 0 and b.low >= 0:
            high = min(high, a.high)
        return Bounds(low, high)
    if op == "<<":
        return _shifted_left(a, b)
    if op == ">>":
        return Bounds(min(a.low, 0), max(a.high, 0)) if b.low != b.high else _shifted_right(a, b)
    return _bits(op, a, b)


def _quotient(a: Bounds, b: Bounds) -> Bounds:
    divisors = {d for d in (b.low, b.high, -1, 1) if d and b.low <= d <= b.high}
    ends = [x // d for x in (a.low, a.high) for d in divisors]
    return _exact([*ends, *([0] if b.has_zero else [])])


def _shifted_left(a: Bounds, b: Bounds) -> Bounds:
    if b.low != b.high or not 0 <= b.low <= 63:
        return FULL
    ends = [a.low << b.low, a.high << b.low]
    return _exact(ends)


def _shifted_right(a: Bounds, b: Bounds) -> Bounds:
    return _exact([int(apply_binary(">>", x, b.low)) for x in (a.low, a.high)])


def _bits(op: str, a: Bounds, b: Bounds) -> Bounds:
    if op == "&" and (a.low >= 0 or b.low >= 0):
        return Bounds(0, min(x.high for x in (a, b) if x.low >= 0))
    # all results have no more bits than the longer operand
    width = max(x.bit_length() for x in (a.low, a.high, b.low, b.high))
    low = 0 if a.low >= 0 and b.low >= 0 else -(2**width)
    return Bounds(max(low, INT64_MIN), min(2**width - 1, INT64_MAX))


def _range_of_call(expr: Call, parts: tuple[Bounds, ...]) -> Bounds:
    if expr.function == "abs":
        a = parts[0]
        low = 0 if a.has_zero else min(abs(a.low), abs(a.high))
        return _exact([low, max(abs(a.low), abs(a.high))])
    if expr.function in ("min", "max", "clamp"):
        ends = [
            int(apply_call(expr.function, args))
            for args in (tuple(p.low for p in parts), tuple(p.high for p in parts))
        ]
        return _exact(ends)
    if type_of(expr.args[0]) != "float":
        return parts[0]  # int() of a bool
    return FULL
