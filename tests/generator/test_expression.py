"""Expressions: typed as declared, equal to Python's own reading, and each refusal at its column."""

from __future__ import annotations

import math
import operator
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.body import Body, Capture, Param
from flashgen.generator.canonical import canonical_text
from flashgen.generator.expression import ExpressionError, Scope, parse_expression
from flashgen.generator.expression.operators import FUNCTION_ARGS
from flashgen.generator.expression.size import MAX_NODES
from flashgen.generator.expression.tokens import MAX_CHARS, MAX_NESTING
from flashgen.generator.ir.nodes import (
    FUNCTIONS,
    Binary,
    Call,
    Const,
    Load,
    Name,
    Named,
    Select,
    Unary,
)

SCOPE = Scope.of(
    captures=(
        Capture("doc", ("seqlen_k",), "int32"),
        Capture("keep", ("batch", "seqlen_k"), "bool"),
        Capture("slope", ("num_heads",), "fp32", grad=True),
        Capture("temperature", (), "fp32"),
    ),
    params=(Param("shift", "int"), Param("cap", "float")),
    constants=(("W", 4096), ("alpha", 0.5), ("strict", True)),
)


def parsed(text, want=None, scope=SCOPE):
    return parse_expression(text, scope, want)


def shown(text, want=None, scope=SCOPE):
    """The canonical text of an expression: fully bracketed, operator first."""
    return canonical_text(Body(score=parsed(text, want, scope).expr)).removeprefix("score ")


@pytest.mark.parametrize(
    ("text", "kind", "canonical"),
    [
        ("q_idx - kv_idx", "int", "(- q_idx kv_idx)"),
        ("q_idx // 2 % 3", "int", "(% (// q_idx 2) 3)"),
        ("q_idx / 2", "float", "(/ (float q_idx) 2.0)"),
        ("score + 1", "float", "(+ score 1.0)"),
        ("score * (q_idx - kv_idx)", "float", "(* score (float (- q_idx kv_idx)))"),
        ("q_idx << 2 | kv_idx & 1 ^ h", "int", "(| (<< q_idx 2) (^ (& kv_idx 1) h))"),
        ("-q_idx", "int", "(- q_idx)"),
        ("-5", "int", "-5"),
        ("--5", "int", "5"),
        ("+q_idx", "int", "q_idx"),
        ("-9223372036854775808", "int", "-9223372036854775808"),
        ("0x10", "int", "16"),
        ("1e-3", "float", "0.001"),
        (".5", "float", "0.5"),
        ("True", "bool", "True"),
        ("not strict", "bool", "(not True)"),
        ("W", "int", "4096"),
        ("alpha * W", "float", "(* 0.5 4096.0)"),
        ("cap + shift", "float", "(+ cap (float shift))"),
        ("0 <= q_idx - kv_idx < W", "bool", None),
        ("q_idx < kv_idx", "bool", "(< q_idx kv_idx)"),
        ("q_idx == 1.5", "bool", "(== (float q_idx) 1.5)"),
        ("strict == (b < h)", "bool", "(== True (< b h))"),
        ("(b < h) & strict", "bool", "(& (< b h) True)"),
        ("keep[b, kv_idx]", "bool", "(load keep b kv_idx)"),
        ("doc[q_idx] == doc[kv_idx]", "bool", "(== (load doc q_idx) (load doc kv_idx))"),
        ("doc[doc[kv_idx] + 1]", "int", "(load doc (+ (load doc kv_idx) 1))"),
        ("slope[h]", "float", "(load slope h)"),
        ("temperature * score", "float", "(* (load temperature) score)"),
        ("1 if strict else 2", "int", "(if True 1 2)"),
        ("1 if strict else score", "float", "(if True 1.0 score)"),
        ("where(strict, score, h)", "float", "(if True score (float h))"),
        ("where(strict, b < h, False)", "bool", "(if True (< b h) False)"),
        ("abs(h)", "int", "(abs h)"),
        ("min(b, h, 3)", "int", "(min (min b h) 3)"),
        ("max(b, 0.5)", "float", "(max (float b) 0.5)"),
        ("clamp(q_idx, 0, W)", "int", "(clamp q_idx 0 4096)"),
        ("tanh(h)", "float", "(tanh (float h))"),
        ("floor(score)", "int", "(floor score)"),
        ("floor(h)", "int", "h"),
        ("int(score)", "int", "(int score)"),
        ("int(b < h)", "int", "(int (< b h))"),
        ("int(h)", "int", "h"),
        ("float(2)", "float", "2.0"),
        ("float(strict)", "float", "(float True)"),
        ("score\n  + 1 ", "float", "(+ score 1.0)"),
        ("\tscore", "float", "score"),
    ],
)
def test_types_and_conversions(text, kind, canonical):
    assert parsed(text).type == kind
    assert canonical is None or shown(text) == canonical


def test_a_chain_is_the_and_of_its_links():
    links = "(and (<= 0 (- q_idx kv_idx)) (< (- q_idx kv_idx) 4096))"
    assert shown("0 <= q_idx - kv_idx < W") == links


def test_a_wanted_float_takes_an_int():
    assert shown("h", "float") == "(float h)"
    assert shown("3", "float") == "3.0"


def test_lets_are_names_of_their_expressions():
    dist = parsed("q_idx - kv_idx")
    scope = SCOPE.with_let("dist", dist.expr, dist.type, dist.used)
    again = parsed("dist * slope[h]", scope=scope)
    assert again.expr.left.args[0] == Named("dist", dist.expr)
    assert again.used == {"dist", "q_idx", "kv_idx", "slope", "h"}


def test_a_long_and_is_not_deep():
    text = " and ".join(f"q_idx != {n}" for n in range(200))
    assert len(re.findall("q_idx", shown(text))) == 200


REFUSED = [
    # text, the characters underlined, what is said
    ("", 0, 1, "got nothing"),
    ("   ", 0, 1, "got nothing"),
    ("scor + 1", 0, 4, "unknown name 'scor'. Did you mean 'score'?"),
    ("1 + DOC[0]", 4, 7, "Did you mean 'doc'?"),
    ("score + i", 8, 9, "Did you mean 'q_idx'?"),
    ("seqlen_k - 1", 0, 8, "Did you mean 'kv_len'?"),
    ("true", 0, 4, "Did you mean 'True'?"),
    ("None", 0, 4, "'None' is not part of the language"),
    ("abs + 1", 0, 3, "'abs' is a function. Write abs(...)."),
    ("log10(score)", 0, 5, "unknown function 'log10'. Did you mean 'log'?"),
    ("doc(q_idx)", 0, 3, "Elements are read by doc[...]."),
    ("score.real", 5, 6, "attributes are not part"),
    ("score + q_idx.x", 13, 14, "attributes are not part"),
    ("__import__('os')", 0, 10, "unknown function '__import__'"),
    ("(lambda: 0)()", 1, 7, "'lambda' is not part"),
    ("[x for x in doc]", 0, 1, "got a list"),
    ("(x for x in doc)", 3, 6, "'for' is not part"),
    ("{1: 2}", 0, 1, "sets and dicts"),
    ("doc[1:2]", 5, 6, "slices"),
    ("score if b", 0, 10, "expected 'else'"),
    ("9**9**9", 1, 3, "'**' is no operator here"),
    ("h = 1", 2, 3, "Write '=='"),
    ("(h := 1)", 3, 5, "Give names below 'let:'"),
    ("h && b", 2, 4, "Write 'and'"),
    ("!h", 0, 1, "Write 'not'"),
    ("~h", 0, 1, "is no operator"),
    ("h ? 1 : 2", 2, 3, "Write 'a if condition else b'"),
    ("h in doc", 2, 4, "'in' is not part"),
    ("h is b", 2, 4, "'is' is not part"),
    ("'a'", 0, 1, "strings are not part"),
    ('f"{h}"', 1, 2, "strings are not part"),
    ("h # b", 2, 3, "comments are not part"),
    ("h; b", 1, 2, "without ';'"),
    ("h \\ b", 2, 3, "A line may end anywhere"),
    ("h $ b", 2, 3, "U+0024"),
    ("hé", 1, 2, "U+00E9"),
    ("q_idx \u2264 3", 6, 7, "U+2264"),
    ("1j", 0, 2, "expected a number, got '1j'"),
    ("1_000", 0, 5, "Write its digits without '_'"),
    ("007", 0, 3, "Leave out the leading zeros"),
    ("0x", 0, 2, "expected a number"),
    ("1.2.3", 0, 5, "expected a number, got '1.2.3'"),
    ("9" * 50, 0, 50, "at most 40 digits"),
    ("9223372036854775808", 0, 19, "expected an integer up to 9223372036854775807"),
    ("1e999", 0, 5, "expected a finite number"),
    ("h h", 2, 3, "expected an operator, got 'h'"),
    ("2 (h)", 2, 3, "expected an operator, got '('"),
    ("h +", 3, 4, "got the end of the expression"),
    ("* h", 0, 1, "expected a value, got '*'"),
    ("(h", 0, 1, "expected a closing bracket for this '('"),
    ("h)", 1, 2, "got ')' without its '('"),
    ("doc[h)", 5, 6, "got ')' without its '('"),
    ("()", 0, 2, "expected a value, got '()'"),
    ("abs()", 3, 5, "expected the function's arguments"),
    ("doc[]", 4, 5, "expected a value, got ']'"),
    ("b, h", 1, 2, "got a comma"),
    ("abs(h,)", 6, 7, "expected a value, got ')'"),
    ("abs(b, h)", 0, 9, "expected 1 argument of abs, got 2"),
    ("min(b)", 0, 6, "expected 2 arguments or more of min, got 1"),
    ("where(strict, b)", 0, 16, "expected 3 arguments of where, got 2"),
    ("abs(x=h)", 5, 6, "'=' is no operator"),
    ("abs(*doc)", 4, 5, "expected a value, got '*'"),
    ("doc + 1", 0, 3, "expected an element of doc"),
    ("doc[b, h]", 0, 9, "expected 1 index of doc, which has the dimensions (seqlen_k), got 2"),
    ("temperature[0]", 0, 14, "expected 0 indices of temperature"),
    ("h[0]", 0, 1, "expected a capture before '[', got 'h'"),
    ("doc[score]", 4, 9, "expected an int, got a float. Round it by floor(x)"),
    ("doc[b < h]", 4, 9, "expected an int, got a bool. Write int(x)"),
    ("keep[b, h < 1]", 8, 13, "expected an int, got a bool"),
    ("h and b", 0, 1, "expected a bool, got an int. Compare it"),
    ("not h", 4, 5, "expected a bool, got an int"),
    ("(b < h) + 1", 1, 6, "expected a number, got a bool"),
    ("-(b < h)", 2, 7, "expected a number, got a bool"),
    ("(b < h) < (h < b)", 1, 6, "expected a number, got a bool"),
    ("strict == 1", 0, 6, "expected a number, got a bool"),
    ("score & 1", 0, 5, "expected an int, got a float"),
    ("strict | 1", 0, 6, "expected an int, got a bool"),
    ("strict << 1", 0, 6, "expected an int, got a bool"),
    ("h if b else 1", 5, 6, "expected a bool, got an int"),
    ("h if strict else strict", 17, 23, "expected an int, as the other branch has it"),
    ("tanh(strict)", 5, 11, "expected a number, got a bool"),
    ("floor(strict)", 6, 12, "expected a number, got a bool"),
]


@pytest.mark.parametrize(("text", "start", "end", "says"), REFUSED)
def test_refusals_underline_what_is_wrong(text, start, end, says):
    with pytest.raises(ExpressionError) as caught:
        parsed(text)
    assert says in caught.value.message
    assert (caught.value.start, caught.value.end) == (start, end)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("(" * 10_000 + "1" + ")" * 10_000, MAX_NESTING),
        ("doc[" * 10_000 + "1" + "]" * 10_000, 4 * MAX_NESTING + 3),
        ("-" * 10_000 + "1", MAX_NESTING),
        ("not " * 10_000 + "True", 4 * MAX_NESTING),
        ("1 + " * 10_000 + "1", MAX_CHARS),
        ("1 if strict else " * 10_000 + "1", MAX_CHARS),
        ("h" * 100_000, MAX_CHARS),
    ],
)
def test_what_would_choke_a_parser_is_refused_before_it_sees_it(text, start):
    began = time.perf_counter()
    with pytest.raises(ExpressionError) as caught:
        parsed(text)
    assert time.perf_counter() - began < 1
    assert caught.value.start == start


def test_a_deep_sum_is_refused():
    assert parsed(" + ".join(["h"] * 90))
    with pytest.raises(ExpressionError, match="levels of nesting"):
        parsed(" + ".join(["h"] * 200))
    with pytest.raises(ExpressionError, match="levels of nesting"):
        parsed("1 if strict else " * 200 + "1")


def test_lets_that_double_are_refused():
    scope = SCOPE
    with pytest.raises(ExpressionError, match=f"at most {MAX_NODES} operations"):
        for number in range(60):
            last = f"x{number - 1}" if number else "h"
            let = parsed(f"{last} + {last}", scope=scope)
            scope = scope.with_let(f"x{number}", let.expr, let.type, let.used)


def test_masks_have_no_score():
    scope = SCOPE.with_let("twice", Binary("*", Name("score", "float"), Const(2.0)), "float",
                           frozenset({"score"})).of_mask()  # fmt: skip
    for text in ("score > 0", "twice > 0"):
        with pytest.raises(ExpressionError, match="before there is a score"):
            parsed(text, scope=scope)


def test_every_function_is_typed():
    assert set(FUNCTION_ARGS) == set(FUNCTIONS)


WORDS = "q_idx score doc [ ] ( ) + - * // % < == and or not if else , 1 2.5 min abs where . ' ** \n"


@given(
    st.text(max_size=40) | st.lists(st.sampled_from(WORDS.split(" ")), max_size=14).map(" ".join)
)
def test_any_text_is_an_expression_or_an_expression_error(text):
    try:
        result = parsed(text)
    except ExpressionError as error:
        assert error.message
        assert 0 <= error.start < error.end <= max(len(text), 1) + 1
    else:
        assert result.type in ("bool", "int", "float")


VALUES = {"q_idx": 7, "kv_idx": -3, "h": 2, "score": 1.25, "alpha": 0.5, "W": 4096}
OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b,
}  # fmt: skip
CALLS = {
    "abs": abs, "min": min, "max": max, "floor": math.floor, "int": int, "float": float,
    "clamp": lambda x, low, high: min(max(x, low), high),
    "where": lambda c, a, b: a if c else b, "tanh": math.tanh,
}  # fmt: skip


def value_of(expr):
    """What an expression of the IR comes to; plain Python, apart from the package's own."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Name):
        return VALUES[expr.id]
    if isinstance(expr, Unary):
        return not value_of(expr.operand) if expr.op == "not" else -value_of(expr.operand)
    if isinstance(expr, Binary):
        left, right = value_of(expr.left), value_of(expr.right)
        assert type(left) is type(right), "operands of one type"
        return OPERATIONS[expr.op](left, right)
    if isinstance(expr, Select):
        return value_of(expr.then if value_of(expr.condition) else expr.otherwise)
    assert isinstance(expr, Call) and not isinstance(expr, Load)
    return CALLS[expr.function](*(value_of(arg) for arg in expr.args))


def _numbers(inner):
    number, flag = inner
    pair = st.tuples(number, number)
    return (
        st.one_of(
            st.tuples(number, st.sampled_from(["+", "-", "*"]), number).map(" ".join),
            st.tuples(number, st.sampled_from(["// 3", "% -2", "/ 0.5", "% 3"])).map(" ".join),
            number.map("({})".format),
            number.map("-{}".format),
            number.map("floor({})".format),
            number.map("abs({})".format),
            number.map("tanh({})".format),
            pair.map(lambda p: f"min({p[0]}, {p[1]}, 4)"),
            pair.map(lambda p: f"clamp({p[0]}, -2, {p[1]})"),
            st.tuples(number, flag, number).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
            st.tuples(flag, number, number).map(lambda p: f"where({p[0]}, {p[1]}, {p[2]})"),
            flag.map("int({})".format),
        ),
        st.one_of(
            st.tuples(number, st.sampled_from(["<", "<=", "==", "!="]), number).map(" ".join),
            pair.map(lambda p: f"({p[0]} < {p[1]} <= 5)"),
            st.tuples(flag, st.sampled_from(["and", "or"]), flag).map(" ".join),
            flag.map("not ({})".format),
            flag.map("({})".format),
        ),
    )  # fmt: skip


LEAVES = (st.sampled_from([*VALUES, "3", "0.25", "11"]), st.sampled_from(["True", "h > 1"]))
LEVEL1 = tuple(a | b for a, b in zip(LEAVES, _numbers(LEAVES), strict=True))
LEVEL2 = _numbers(LEVEL1)


@given(LEVEL2[0] | LEVEL2[1])
def test_an_expression_means_what_python_means(text):
    scope = Scope.of(constants=(("alpha", 0.5), ("W", 4096)))
    expected = eval(text, {"__builtins__": {}}, {**CALLS, **VALUES})
    result = parse_expression(text, scope)
    got = value_of(result.expr)
    assert got == pytest.approx(expected, rel=1e-12, abs=1e-12), text
    assert result.type == type(got).__name__
