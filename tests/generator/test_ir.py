"""The expression IR: its two spellings mean what its nodes mean."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.ir import INDEX_NAMES, Binary, Const, Expr, Name, binary, to_text

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def evaluate(expr: Expr, names: dict[str, int]) -> int | float | bool:
    """What ``expr`` is worth, node by node: the meaning that both printers must keep."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Name):
        return names[expr.id]
    left, right = evaluate(expr.left, names), evaluate(expr.right, names)
    if expr.op == "and":
        return bool(left) and bool(right)
    if expr.op == "or":
        return bool(left) or bool(right)
    return OPERATORS[expr.op](left, right)


NUMBERS = st.recursive(
    st.builds(Const, st.integers(0, 9)) | st.builds(Name, st.sampled_from(INDEX_NAMES)),
    lambda e: st.builds(Binary, st.sampled_from("+-*"), e, e),
    max_leaves=8,
)
COMPARISONS = st.builds(
    Binary, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS, NUMBERS
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda e: st.builds(Binary, st.sampled_from(["and", "or"]), e, e),
    max_leaves=4,
)
NAMES = st.fixed_dictionaries({name: st.integers(-50, 50) for name in INDEX_NAMES})


@given(NUMBERS | CONDITIONS, NAMES)
def test_python_text_means_the_nodes(expr, names):
    assert eval(to_text(expr), {}, dict(names)) == evaluate(expr, names)


@given(st.sampled_from("+-*"), NUMBERS, NUMBERS, NAMES)
def test_folding_keeps_the_meaning(op, left, right, names):
    assert evaluate(binary(op, left, right), names) == evaluate(Binary(op, left, right), names)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (binary("+", Const(2), Const(3)), "5"),
        (binary("-", Name("q_idx"), Const(0)), "q_idx"),
        (binary("+", Const(0), Name("q_idx")), "q_idx"),
        (binary("-", Const(0), Name("q_idx")), "-q_idx"),
        (Binary("-", Name("b"), Binary("-", Name("h"), Const(1))), "b - (h - 1)"),
        (Binary("*", Binary("+", Name("b"), Const(1)), Name("h")), "(b + 1) * h"),
        (Const(True), "True"),
    ],
)
def test_text_is_plain(expr, text):
    assert to_text(expr) == text
