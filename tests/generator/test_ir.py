"""The expression IR: every rewriting and printing keeps the meaning that the interpreter gives."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from program_unit import inputs
from strategies import CAPTURES, PARAMS, bodies, conditions, random_program

from flashgen.generator.expression import Scope as Names
from flashgen.generator.expression import parse_expression
from flashgen.generator.ir import (
    Binary,
    Call,
    Const,
    Load,
    Name,
    Named,
    Select,
    Unary,
    binary,
    call,
    select,
    simplify,
    to_text,
    type_of,
    unary,
    walk,
)
from flashgen.generator.ir.fold import apply_binary, apply_call, apply_unary
from flashgen.generator.ir.graph import Graph
from flashgen.generator.ir.ranges import DTYPES, FULL
from flashgen.runtime.evaluate import Scope, evaluate

SIZES = (2, 2, 1, 9, 9)
GIVEN = inputs(3, SIZES)
QUICK = settings(max_examples=60, deadline=None)


def block() -> Scope:
    score = torch.linspace(-3, 3, 324, dtype=torch.float64).reshape(2, 2, 9, 9)
    return Scope.of_block(
        range(2), range(2), range(9), range(9), sizes=(9, 9, 2, 1),
        score=score, captures=GIVEN.captures, params=GIVEN.params,
    )  # fmt: skip


def agree(a, b) -> bool:
    left, right = torch.broadcast_tensors(evaluate(a, block()), evaluate(b, block()))
    return left.dtype == right.dtype and torch.allclose(
        left.double(), right.double(), rtol=1e-12, atol=1e-12, equal_nan=True
    )


def roots(body):
    return [root for root in (body.mask, body.score) if root is not None]


@QUICK
@given(bodies())
def test_simplified_means_the_same(body):
    for root in roots(body):
        assert agree(simplify(root), root), to_text(root)
        assert type_of(simplify(root)) == type_of(root)


@QUICK
@given(bodies())
def test_text_reads_back(body):
    names = Names.of(CAPTURES, PARAMS)
    for root in roots(body):
        read = parse_expression(to_text(root), names, type_of(root)).expr
        assert agree(read, root), to_text(root)


@QUICK
@given(bodies())
def test_integers_stay_in_their_ranges(body):
    graph = Graph(lambda name: ranges[name])
    ranges = {c.name: DTYPES.get(c.dtype, FULL) for c in CAPTURES}
    for node in (node for root in roots(body) for node in walk(root)):
        if type_of(node) == "int":
            value, bounds = evaluate(node, block()), graph.add(node).bounds
            assert bounds.low <= int(value.min()), to_text(node)
            assert int(value.max()) <= bounds.high, to_text(node)


@given(conditions(depth=3))
@QUICK
def test_equal_expressions_are_one_node(expr):
    graph = Graph(lambda name: FULL)
    number = graph.add(expr).number
    again = parse_expression(to_text(expr), Names.of(CAPTURES, PARAMS), "bool").expr
    count = len(graph.nodes)
    if to_text(again) == to_text(expr) and repr(again) == repr(expr):
        assert graph.add(again).number == number
        assert len(graph.nodes) == count


INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)
FLOATS = st.floats(-50, 50).filter(lambda x: x == 0 or abs(x) > 1e-3)


@given(st.sampled_from(["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"]), INTS, INTS)
def test_folded_integers_are_int64(op, a, b):
    found = apply_binary(op, a, b)
    expected = int(evaluate(Binary(op, Const(a), Const(b)), block()))
    assert found == expected == binary(op, Const(a), Const(b)).value


@given(st.sampled_from(["+", "-", "*", "/", "//", "%"]), FLOATS, FLOATS)
def test_folded_floats_are_the_interpreters(op, a, b):
    found = apply_binary(op, a, b)
    expected = float(evaluate(Binary(op, Const(a), Const(b)), block()))
    # a // b of reals whose quotient rounds to an integer may be that one or the one below
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-9) or op in ("//", "%")


@given(
    st.sampled_from(["exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "sin", "cos", "abs"]),
    FLOATS,
)
def test_folded_functions_are_the_interpreters(function, x):
    found = apply_call(function, (x,))
    expected = float(evaluate(Call(function, (Const(x),)), block()))
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (apply_binary("//", -7, 2), -4),
        (apply_binary("%", -7, 2), 1),
        (apply_binary("%", 7, -2), -1),
        (apply_binary("//", 3, 0), 0),
        (apply_binary("/", 3, 0), 0.0),
        (apply_binary("%", 3.5, 0.0), 0.0),
        (apply_binary("<<", 1, 64), 0),
        (apply_binary(">>", -1, -1), 0),
        (apply_binary("+", 2**63 - 1, 1), -(2**63)),
        (apply_unary("-", -(2**63)), -(2**63)),
        (apply_call("int", (-2.7,)), -2),
        (apply_call("floor", (-2.7,)), -3),
        (apply_call("int", (float("inf"),)), 2**63 - 1),
        (apply_call("clamp", (5, 0, 3)), 3),
    ],
)
def test_corners_of_arithmetic(found, expected):
    assert found == expected
    assert type(found) is type(expected)


Q, KV, X = Name("q_idx"), Name("kv_idx"), Name("cap", "float")
SUM = Binary("+", Q, KV)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (binary("+", Const(2), Const(3)), "5"),
        (binary("-", Q, Const(0)), "q_idx"),
        (binary("+", binary("+", Q, Const(2)), Const(-3)), "q_idx - 1"),
        (binary("-", Const(0), Q), "-q_idx"),
        (binary("+", Q, unary("-", KV)), "q_idx - kv_idx"),
        (binary("*", Q, Const(0)), "0"),
        (binary("*", X, Const(0)), "cap * 0"),  # NaN and infinity stay
        (binary("*", Q, Const(1.0)), "q_idx * 1.0"),  # its type is float
        (binary("and", Const(True), Binary("<", Q, KV)), "q_idx < kv_idx"),
        (binary("<", Q, Q), "False"),
        (unary("not", Binary("<", Q, KV)), "q_idx >= kv_idx"),
        (unary("not", Binary("<", X, KV)), "not cap < kv_idx"),  # NaN is neither
        (select(Const(True), Q, KV), "q_idx"),
        (select(Const(False), X, Q), "float(q_idx)"),
        (call("min", Q, KV, Const(3)), "min(min(q_idx, kv_idx), 3)"),
        (call("floor", Q), "q_idx"),
        (Binary("-", Q, Binary("-", KV, Const(1))), "q_idx - (kv_idx - 1)"),
        (Binary("*", SUM, Q), "(q_idx + kv_idx) * q_idx"),
        (Binary("==", Binary("<", Q, KV), Const(True)), "(q_idx < kv_idx) == True"),
        (Unary("-", Binary("*", Q, KV)), "-(q_idx * kv_idx)"),
        (Binary("*", Unary("-", Q), KV), "-q_idx * kv_idx"),
        (Select(Binary("<", Q, KV), Const(1), Const(2)), "1 if q_idx < kv_idx else 2"),
        (Load("bias", (Q, SUM), "float"), "bias[q_idx, q_idx + kv_idx]"),
        (Load("temperature", (), "float"), "temperature"),
        (Const(float("inf")), "float('inf')"),
    ],
)
def test_text_is_plain(expr, text):
    assert to_text(expr) == text


def test_lets_print_by_name_on_request():
    expr = Binary("<=", Named("dist", Binary("-", Q, KV)), Const(3))
    assert to_text(expr) == "q_idx - kv_idx <= 3"
    assert to_text(expr, lets=True) == "dist <= 3"


def test_a_hundred_lets_of_lets_take_no_time():
    expr = Name("q_idx")
    for index in range(100):
        expr = Named(f"x{index}", Binary("+", expr, expr))
    graph = Graph(lambda name: FULL)
    assert graph.add(simplify(expr)).bounds.wraps
    assert len(graph.nodes) < 250


def test_random_programs_are_of_every_kind():
    rng = random.Random(0)
    found = [random_program(rng) for _ in range(200)]
    nodes = [node for body in found for root in roots(body) for node in walk(root)]
    assert {node.op for node in nodes if isinstance(node, Binary)} >= {"//", "%", "<<", "/", "or"}
    assert {node.capture for node in nodes if isinstance(node, Load)} == {c.name for c in CAPTURES}
    assert sum(body.score is not None for body in found) > 100
