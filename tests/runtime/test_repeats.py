from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flashgen
from flashgen.flash_attn import flash_attn_func
from flashgen.generator.errors import ArgumentError, FlashgenError
from flashgen.runtime import calls, repeats

SIZES = (2, 5, 3, 16)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        found = flashgen.load("d16-fp32-causal", "cpu")
    found(*draw())
    return found


def draw():
    return [torch.randn(SIZES).requires_grad_() for _ in range(3)]


def again(kernel, *tensors, scale=None, dropout_p=0.0):
    return repeats.repeated(kernel, *tensors, scale, dropout_p)


def sdpa(q, k, v, causal):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = flashgen.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2)


@pytest.mark.parametrize("attend", [flash_attn_func, flashgen.attention, sdpa])
def test_plans_go_the_same_way(kernel, attend, monkeypatch):
    q, k, v = draw()
    monkeypatch.setattr(calls, "find_kernel", lambda *_: kernel)
    first = attend(q, k, v, causal=True)
    seen = []
    monkeypatch.setattr(calls, "repeated", lambda *a: seen.append(repeats.repeated(*a)) or seen[0])
    out = attend(q, k, v, causal=True)
    assert seen[0].data_ptr() == out.data_ptr() and torch.equal(out, first)
    dout = torch.randn(SIZES)
    grads = [torch.autograd.grad(o, (q, k, v), dout) for o in (out, first)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    calls._plans.clear()  # they are of this test's kernel


@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_the_long_way(kernel, scale):
    q, k, v = draw()
    out = again(kernel, q, k, v, scale=scale)
    expected, _ = kernel(q, k, v, softmax_scale=scale, return_lse=True)
    assert out.requires_grad and torch.equal(out, expected)
    dout = torch.randn(SIZES)
    grads = [torch.autograd.grad(o, (q, k, v), dout) for o in (out, expected)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    with torch.no_grad():
        out = again(kernel, q, k, v, scale=scale)
    assert not out.requires_grad and torch.equal(out, expected)
    strided = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in (q, k, v)]
    assert torch.equal(again(kernel, *strided, scale=scale), expected)


def test_one_derivative_alone(kernel):
    q, k, v = draw()
    out = again(kernel, q, k, v)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(FlashgenError, match="second"):
        dq.sum().backward()


def test_what_is_not_like_an_earlier_call(kernel):
    q, k, v = (t.detach() for t in draw())
    assert again(kernel, q[:, :4], k, v) is None
    assert again(kernel, q, k, v, scale=-0.5) is None
    assert again(kernel, q, k, v, scale=2) is None
    assert again(kernel, q, k, v, dropout_p=0) is None
    assert again(kernel, q, k, v, dropout_p=0.5) is None
    assert again(kernel, q, k, v.as_subclass(type("Mine", (torch.Tensor,), {}))) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert again(kernel, q, k, v) is None
    found = []
    torch.func.vmap(lambda q: found.append(again(kernel, q, k, v)) or q)(q.unsqueeze(0))
    assert found == [None]


WRONG = {
    "dtype": lambda t: t.double(),
    "shape": lambda t: t[:, :, :, :8],
    "heads": lambda t: t[:, :, :1],
    "rank": lambda t: t[0],
    "device": lambda t: t.to("meta"),
    "layout": lambda t: t.to_sparse(),
    "array": lambda t: t.numpy(),
    "none": lambda t: None,
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("kind", WRONG)
def test_the_long_way_tells_what_is_wrong(kernel, kind, place):
    tensors: list[object] = [t.detach() for t in draw()]
    tensors[place] = WRONG[kind](tensors[place])
    with pytest.raises(ArgumentError, match="expected"):
        kernel(*tensors)
    assert again(kernel, *tensors) is None


def test_saves_what_backward_needs_and_no_more(kernel):
    q, k, v = draw()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = again(kernel, q, k, v)
    assert [t.data_ptr() for t in saved[:4]] == [t.data_ptr() for t in (q, k, v, out)]
    assert [t.shape for t in saved[4:]] == [(2, 3, 5)]


def test_a_checkpoint_may_repeat_what_it_recomputes(kernel):
    q, k, v = (torch.randn(1, 7, 2, 16).requires_grad_() for _ in range(3))
    assert again(kernel, q, k, v) is None  # the forward goes the long way, its repetition doesn't
    out = checkpoint(kernel, q, k, v, use_reentrant=False)
    got = torch.autograd.grad(out.square().sum(), (q, k, v))
    expected = torch.autograd.grad(kernel(q, k, v).square().sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
