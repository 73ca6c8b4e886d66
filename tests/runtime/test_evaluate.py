from __future__ import annotations

import itertools
import math

import pytest
import torch

from flashgen.generator.ir.nodes import Binary, Call, Const, Load, Name, Named, Select, Unary
from flashgen.runtime.evaluate import Scope, evaluate

INT64_MIN = -(2**63)


def scope_of(score=None, captures=None, params=None, queries=3, keys=5):
    return Scope.of_block(
        range(2), range(4), range(queries), range(keys),
        sizes=(queries, keys, 4, 2), score=score, captures=captures, params=params,
    )  # fmt: skip


def run(expr, **options):
    return evaluate(expr, scope_of(**options))


def const(expr):
    return evaluate(expr, scope_of()).item()


def python_floor(op, a, b):
    if b == 0:
        return 0
    return a // b if op == "//" else a % b


@pytest.mark.parametrize("op", ["//", "%"])
def test_integer_division_floors_as_pythons(op):
    numbers = (-7, -3, -1, 0, 1, 2, 5, 2**40)
    for a, b in itertools.product(numbers, numbers):
        assert const(Binary(op, Const(a), Const(b))) == python_floor(op, a, b), (a, op, b)
    for a, b in itertools.product((-7.5, -0.5, 0.0, 3.25), (-2.0, 0.0, 1.5)):
        found = run(Binary(op, Const(a), Const(b)))
        assert found.dtype == torch.float64
        assert found.item() == pytest.approx(python_floor(op, a, b)), (a, op, b)


def test_int64_wraps():
    assert const(Binary("+", Const(2**63 - 1), Const(1))) == INT64_MIN
    assert const(Binary("//", Const(INT64_MIN), Const(-1))) == INT64_MIN
    assert const(Binary("%", Const(INT64_MIN), Const(-1))) == 0
    assert const(Unary("-", Const(INT64_MIN))) == INT64_MIN


def test_division_is_of_floats_and_by_zero_gives_zero():
    assert const(Binary("/", Const(7), Const(2))) == 3.5
    assert const(Binary("/", Const(7), Const(0))) == 0.0
    assert const(Binary("/", Const(math.inf), Const(0.0))) == 0.0


@pytest.mark.parametrize(("count", "left", "right"), [(-1, 0, 0), (64, 0, 0), (3, -40, -1), (63, INT64_MIN, -1)])  # fmt: skip  # noqa: E501
def test_shifts(count, left, right):
    assert const(Binary("<<", Const(-5), Const(count))) == left
    assert const(Binary(">>", Const(-5), Const(count))) == right


def test_types():
    b, i, f = Const(True), Const(3), Const(2.5)
    for expr, dtype in [
        (Binary("+", b, b), torch.int64),
        (Binary("&", b, b), torch.bool),
        (Binary("&", b, i), torch.int64),
        (Binary("*", i, f), torch.float64),
        (Binary("<", i, f), torch.bool),
        (Select(b, i, f), torch.float64),
        (Select(b, b, b), torch.bool),
        (Call("min", (i, f)), torch.float64),
        (Call("min", (i, b)), torch.int64),
        (Call("floor", (f,)), torch.int64),
        (Call("int", (f,)), torch.int64),
        (Call("float", (i,)), torch.float64),
        (Call("exp", (i,)), torch.float64),
        (Unary("not", i), torch.bool),
        (Unary("-", b), torch.int64),
    ]:
        assert run(expr).dtype == dtype, expr


def test_int_truncates_and_floor_floors():
    assert const(Call("int", (Const(-2.5),))) == -2
    assert const(Call("floor", (Const(-2.5),))) == -3


def test_functions_equal_those_of_math():
    x = 0.625
    expected = {
        "exp": math.exp(x), "exp2": 2**x, "log": math.log(x), "log2": math.log2(x),
        "tanh": math.tanh(x), "sigmoid": 1 / (1 + math.exp(-x)), "sqrt": math.sqrt(x),
        "rsqrt": 1 / math.sqrt(x), "sin": math.sin(x), "cos": math.cos(x), "abs": x,
    }  # fmt: skip
    for function, value in expected.items():
        assert const(Call(function, (Const(x),))) == pytest.approx(value, rel=1e-14), function
    assert const(Call("clamp", (Const(5), Const(-1), Const(3)))) == 3
    assert const(Call("max", (Const(5), Const(-1), Const(7)))) == 7


def test_names_have_the_axes_of_the_block():
    found = run(Binary("+", Name("q_idx"), Binary("*", Name("h_kv"), Const(100))))
    assert found.shape == (1, 4, 3, 1)
    assert found[0, :, 2, 0].tolist() == [2, 2, 102, 102]
    assert run(Name("kv_len")).item() == 5 and run(Name("num_heads")).item() == 4
    assert run(Name("cap", "float"), params={"cap": 3}).dtype == torch.float64


def test_loads_out_of_range_are_zero():
    table = torch.arange(1.0, 5.0, dtype=torch.float64).requires_grad_()
    index = Binary("-", Binary("*", Name("kv_idx"), Const(2)), Const(2))  # -2, 0, 2, 4, 6
    found = run(Load("t", (index,), "float"), captures={"t": table})
    assert found.flatten().tolist() == [0, 1, 3, 0, 0]
    found.sum().backward()
    assert table.grad.tolist() == [1, 0, 1, 0]


def test_loads_of_any_rank_and_stride():
    table = torch.arange(8).view(2, 4).t()  # (4, 2), not contiguous
    found = run(Load("t", (Name("h"), Name("b")), "int"), captures={"t": table})
    assert found.view(2, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert run(Load("s", (), "float"), captures={"s": torch.tensor(2.0)}).item() == 2.0
    empty = run(Load("t", (Name("h"),), "int"), captures={"t": torch.zeros(0, dtype=torch.int32)})
    assert empty.dtype == torch.int64 and not empty.any()


def gradient(expr, x):
    score = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = run(expr, score=score)
    return torch.autograd.grad(value, score)[0].item() if value.requires_grad else 0.0


def test_derivatives_where_there_is_none():
    score = Name("score", "float")
    for expr in (
        Call("sqrt", (score,)),
        Call("log", (score,)),
        Call("log2", (score,)),
        Call("abs", (score,)),
        Binary("/", Const(1.0), score),
        Binary("//", score, Const(2.0)),
        Binary("%", score, Const(0.0)),
    ):
        assert gradient(expr, 0.0) == 0.0, expr
    assert gradient(Binary("%", score, Const(2.0)), 5.0) == 1.0
    assert gradient(Call("max", (score, Const(1.0))), 1.0) == 0.5
    assert gradient(Call("clamp", (score, Const(0.0), Const(1.0))), 1.0) == 1.0


def test_no_gradient_where_it_is_not_active():
    table = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    expr = Call("rsqrt", (Load("t", (Name("kv_idx"),), "float"),))  # infinite at 0
    active = torch.tensor([True, False]).view(1, 1, 1, 2)
    scope = Scope.of_block(
        range(1), range(1), range(1), range(2),
        sizes=(1, 2, 1, 1), captures={"t": table}, active=active,
    )  # fmt: skip
    value = evaluate(expr, scope).masked_fill(~active, 0.0)
    value.sum().backward()
    assert table.grad.tolist() == [-0.5, 0.0]


def test_gradcheck_of_a_program():
    slope = torch.tensor([0.5, -0.25, 2.0, 0.1], dtype=torch.float64, requires_grad=True)
    score = torch.randn(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    dist = Named("dist", Binary("-", Name("q_idx"), Name("kv_idx")))
    bias = Binary("*", dist, Load("slope", (Name("h"),), "float"))
    capped = Call("tanh", (Binary("/", Binary("-", Name("score", "float"), bias), Const(3.0)),))
    expr = Select(Binary(">", dist, Const(0)), capped, Call("log2", (Const(2.0),)))

    def function(score, slope):
        return run(expr, score=score, captures={"slope": slope})

    assert torch.autograd.gradcheck(function, (score, slope))


def test_a_shared_let_is_computed_once():
    expr = Named("x0", Name("kv_idx"))
    for i in range(1, 60):  # 2^60 paths
        expr = Named(f"x{i}", Binary("+", expr, expr))
    assert run(Binary("==", expr, Binary("<<", Name("kv_idx"), Const(59)))).all()
