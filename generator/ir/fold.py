"""Operators and functions on numbers: what a program means, as Python computes it.

The one definition that folding, the printers and the tests agree on: int64 that wraps, ``//`` and
``%`` that floor, a division by 0 that gives 0, shifts that give 0 outside [0, 63].
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

Value = bool | int | float
Real = Callable[[float], float]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def wrap(value: int) -> int:
    """``value`` modulo 2^64, as a signed int."""
    return (value + 2**63) % 2**64 - 2**63


def apply_unary(op: str, value: Value) -> Value:
    """``op value``."""
    if op == "not":
        return not value
    return wrap(-int(value)) if isinstance(value, int) else -value


def apply_binary(op: str, left: Value, right: Value) -> Value:
    """``left op right``."""
    if op in _COMPARE:
        return bool(_COMPARE[op](left, right))
    if op == "and":
        return bool(left) and bool(right)
    if op == "or":
        return bool(left) or bool(right)
    if isinstance(left, bool) and isinstance(right, bool) and op in _BOOL:
        return bool(_BOOL[op](left, right))
    if op == "/" or isinstance(left, float) or isinstance(right, float):
        return _FLOAT[op](float(left), float(right))
    return wrap(_INT[op](int(left), int(right)))


def apply_call(function: str, args: tuple[Value, ...]) -> Value:
    """``function(*args)``."""
    if function in ("min", "max", "clamp", "abs"):
        return _choose(function, args)
    (value,) = args
    if function == "float":
        return float(value)
    if function in ("int", "floor"):
        return _to_int(math.floor if function == "floor" else math.trunc, value)
    return _REAL[function](float(value))


def _choose(function: str, args: tuple[Value, ...]) -> Value:
    # a float among the arguments makes the result one, whichever argument it is
    kind: type = float if any(isinstance(arg, float) for arg in args) else int
    numbers = [kind(arg) for arg in args]
    if any(n != n for n in numbers):
        return math.nan
    if function == "abs":
        return wrap(abs(numbers[0])) if kind is int else abs(numbers[0])
    if function == "clamp":
        value, low, high = numbers
        return min(max(value, low), high)  # type: ignore[no-any-return]
    return min(numbers) if function == "min" else max(numbers)  # type: ignore[no-any-return]


def _to_int(round_: Callable[[float], int], value: Value) -> int:
    if isinstance(value, float) and not math.isfinite(value):
        return 0 if value != value else INT64_MAX if value > 0 else INT64_MIN
    return max(INT64_MIN, min(INT64_MAX, round_(value)))


def _divide(a: float, b: float) -> float:
    if b == 0:
        return 0.0
    return a / b


def _floor_divide(a: float, b: float) -> float:
    if b == 0:
        return 0.0
    return a // b if math.isfinite(a) else math.nan


def _modulo(a: float, b: float) -> float:
    if b == 0:
        return 0.0
    return a % b if math.isfinite(a) else math.nan


def _multiply(a: float, b: float) -> float:
    return a * b


def _shift_left(a: int, count: int) -> int:
    return a << count if 0 <= count <= 63 else 0


def _shift_right(a: int, count: int) -> int:
    return a >> count if 0 <= count <= 63 else 0


def _guarded(function: Real, outside: Real) -> Real:
    """``function`` where it is defined; IEEE's answer ``outside`` where Python raises."""

    def apply(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return outside(x)

    return apply


def _nan(_: float) -> float:
    return math.nan


def _log_outside(x: float) -> float:
    return -math.inf if x == 0 else math.nan


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


_COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_BOOL: dict[str, Callable[[bool, bool], bool]] = {
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_INT: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": _shift_left,
    ">>": _shift_right,
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": _multiply,
    "/": _divide,
    "//": _floor_divide,
    "%": _modulo,
}
_REAL: dict[str, Callable[[float], float]] = {
    "exp": _guarded(math.exp, lambda x: math.inf),
    "exp2": _guarded(lambda x: 2.0**x, lambda x: math.inf),
    "log": _guarded(math.log, _log_outside),
    "log2": _guarded(math.log2, _log_outside),
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "sqrt": _guarded(math.sqrt, _nan),
    "rsqrt": _guarded(lambda x: 1 / math.sqrt(x) if x else math.inf, _nan),
    "sin": _guarded(math.sin, _nan),
    "cos": _guarded(math.cos, _nan),
}
