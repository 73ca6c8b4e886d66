from __future__ import annotations

import math

import pytest
import torch

from flashgen.generator.errors import FlashgenError
from flashgen.runtime import (
    operators,  # noqa: F401  (registers them)
    ops,
    reference,
)


class ReferenceRunner:
    """Stands in for compiled passes, so that these tests are about the operators alone."""

    handle = "reference-runner"

    def __init__(self):
        self.calls = []

    gradient_slots = ()
    integral = (True, False)

    def run_forward(
        self, q, k, v, rng_state, softmax_scale, dropout_threshold, extras=(), numbers=()
    ):
        self.calls.append(("forward", *numbers))
        found = reference.evaluate(
            reference.Problem(self.scaled(q, extras), k, v, softmax_scale=softmax_scale)
        )
        return found.out, found.lse

    @staticmethod
    def scaled(q, extras):
        return q * extras[1].view(1, 1, -1, 1) if extras else q

    def run_backward(
        self, dout, q, k, v, out, lse, dlse, rng_state, softmax_scale, dropout_threshold,
        extras=(), numbers=(),
    ):  # fmt: skip
        given, q = q, self.scaled(q, extras)
        self.calls.append((f"backward {'without' if dlse is None else 'with'} dlse", *numbers))
        # the closed form: autograd does not work below an operator's own dispatch
        group = q.shape[2] // k.shape[2]
        keys, values = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        p = torch.exp(torch.einsum("bihd,bjhd->bhij", q, keys) * softmax_scale - lse[..., None])
        dp = torch.einsum("bihd,bjhd->bhij", dout, values)
        delta = (dout * out).sum(-1).transpose(1, 2) - (0 if dlse is None else dlse)
        ds = p * (dp - delta[..., None]) * softmax_scale
        dk = torch.einsum("bhij,bihd->bjhd", ds, q).unflatten(2, (-1, group)).sum(3)
        dv = torch.einsum("bhij,bihd->bjhd", p, dout).unflatten(2, (-1, group)).sum(3)
        dq = torch.einsum("bhij,bjhd->bihd", ds, keys)
        grads = [dq, dk, dv]
        if extras:
            grads = [self.scaled(dq, extras), dk, dv, (dq * given).sum((0, 1, 3))]
        return tuple(grad.contiguous() for grad in grads)


@pytest.fixture
def runner():
    made = ReferenceRunner()
    ops.register(made)
    yield made
    del ops._runners[made.handle]


@pytest.fixture
def with_extras(runner):
    """A runner whose calls have extras: one without a gradient, then a factor of each head."""
    runner.gradient_slots = (1,)
    return runner


def leaves(dtype=torch.float64):
    gen = torch.Generator().manual_seed(1)
    shapes = [(2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 16)]
    return [torch.randn(s, generator=gen, dtype=dtype, requires_grad=True) for s in shapes]


def attend(runner, q, k, v):
    return ops.attend(runner, q, k, v, None, 0.3, 0)


def plain(*qkv):
    return reference.attention(reference.Problem(*qkv, softmax_scale=0.3))


def loss_of(out, lse):
    return (out.sin().sum() if out is not None else 0) + (lse.cos().sum() if lse is not None else 0)


@pytest.mark.parametrize("use", ["out", "lse", "both"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_either_output(runner, use, compiled):
    q, k, v = leaves()

    def loss(q, k, v, attention):
        out, lse = attention(q, k, v)
        return loss_of(out if use != "lse" else None, lse if use != "out" else None)

    def ours(q, k, v):
        return loss(q, k, v, lambda *qkv: attend(runner, *qkv))

    if compiled:
        torch._dynamo.reset()
        ours = torch.compile(ours, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(ours(q, k, v), (q, k, v))
    expected = torch.autograd.grad(
        loss(q, k, v, plain),
        (q, k, v),
        materialize_grads=True,
    )
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    wanted = "backward without dlse" if use == "out" else "backward with dlse"
    assert runner.calls == [("forward",), (wanted,)]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_extras_find_their_places(with_extras, compiled):
    q, k, v = leaves()
    ids = torch.arange(3)
    factor = torch.tensor([0.5, 2.0, 1.0, -1.0], dtype=torch.float64, requires_grad=True)

    def ours(q, k, v, factor):
        out, lse = ops.attend(with_extras, q, k, v, None, 0.3, 0, (ids, factor * 2), (7, 0.5))
        return loss_of(out, lse)

    def expected(q, k, v, factor):
        return loss_of(*plain(q * (factor * 2).view(1, 1, -1, 1), k, v))

    if compiled:
        torch._dynamo.reset()
        ours = torch.compile(ours, fullgraph=True, backend="aot_eager")
    inputs = (q, k, v, factor)
    got = torch.autograd.grad(ours(*inputs), inputs)
    for a, b in zip(got, torch.autograd.grad(expected(*inputs), inputs), strict=True):
        torch.testing.assert_close(a, b)
    assert with_extras.calls == [("forward", 7, 0.5), ("backward with dlse", 7, 0.5)]


def test_a_gradient_of_an_extra_alone(with_extras):
    q, k, v = (t.detach() for t in leaves())
    factor = torch.ones(4, dtype=torch.float64, requires_grad=True)
    out, _ = ops.attend(with_extras, q, k, v, None, 0.3, 0, (torch.arange(3), factor), ())
    assert out.requires_grad
    (grad,) = torch.autograd.grad(out.sum(), factor)
    assert grad.shape == (4,) and grad.any()


def test_operator_with_extras_is_sound(with_extras):
    q, k, v = leaves(torch.float32)
    factor = torch.linspace(0.5, 1, 4, requires_grad=True)
    args = (q, k, v, None, with_extras.handle, 0.3, 0, [torch.arange(3), factor], [7], [0.5])
    torch.library.opcheck(torch.ops.flashgen.forward.default, args)
    q, k, v, factor = (t.detach() for t in (q, k, v, factor))
    out, lse = torch.ops.flashgen.forward(
        q, k, v, *args[3:7], [torch.arange(3), factor], [7], [0.5]
    )
    torch.library.opcheck(
        torch.ops.flashgen.backward.default,
        (torch.ones_like(out), q, k, v, out, lse, None, None, with_extras.handle, 0.3, 0,
         [torch.arange(3), factor], [7], [0.5]),
    )  # fmt: skip


def test_no_graph_without_gradients(runner):
    q, k, v = leaves()
    with torch.no_grad():
        assert not attend(runner, q, k, v)[0].requires_grad
    assert not attend(runner, *(t.detach() for t in (q, k, v)))[0].requires_grad
    assert attend(runner, q.detach(), k, v.detach())[1].requires_grad


def test_gradcheck_of_the_wiring(runner):
    q, k, v = leaves()
    assert torch.autograd.gradcheck(lambda *qkv: attend(runner, *qkv), (q, k, v))


def test_second_derivative_is_refused_where_it_is_asked_for(runner):
    q, k, v = leaves()
    out, _ = attend(runner, q, k, v)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    assert dq.requires_grad  # create_graph alone is no error
    with pytest.raises(FlashgenError, match="second"):
        dq.sum().backward()


def test_saves_its_inputs_and_results_only(runner):
    q, k, v = leaves()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out, lse = attend(runner, q, k, v)
    pointers = [t.data_ptr() for t in (q, k, v, out, lse)]
    assert [t.data_ptr() for t in saved] == pointers


def test_operator_is_sound(runner):
    q, k, v = leaves(torch.float32)
    args = (q, k, v, None, runner.handle, 0.3, 0, [], [], [])
    torch.library.opcheck(torch.ops.flashgen.forward.default, args)
    out, lse = (t.detach() for t in attend(runner, q, k, v))
    tensors = [t.detach() for t in (torch.ones_like(out), q, k, v, out, lse, torch.sin(lse))]
    torch.library.opcheck(
        torch.ops.flashgen.backward.default, (*tensors, None, runner.handle, 0.3, 0, [], [], [])
    )


def test_fake_tensors_give_shapes_and_run_nothing(runner):
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(2, 5, 4, 64, dtype=torch.float16)
        kv = torch.empty(2, 7, 2, 64, dtype=torch.float16)
        out, lse = attend(runner, q, kv, kv)
    assert out.shape == (2, 5, 4, 64) and out.dtype == torch.float16
    assert lse.shape == (2, 4, 5) and lse.dtype == torch.float32
    assert runner.calls == []


def test_dynamic_shapes_compile_once(runner):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def run(q, k, v):
        return attend(runner, q, k, v)[0] * 2

    for seqlen in (5, 9, 33, 64):
        q = torch.randn(2, seqlen, 4, 8)
        out = run(q, q, q)
        expected = plain(q, q, q)[0] * 2
        torch.testing.assert_close(out, expected)
    assert len(graphs) == 1
    assert math.isfinite(out.sum().item())
