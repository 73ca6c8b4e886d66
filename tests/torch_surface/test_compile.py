from __future__ import annotations

import pytest
import torch

import flashgen
from flashgen import flash_attn
from flashgen.generator.errors import ArgumentError
from flashgen.runtime import calls


def draw(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def packed(q, k, v):
    offsets = torch.tensor([0, 4, len(q)], dtype=torch.int32)
    return flash_attn.flash_attn_varlen_func(q, k, v, offsets, offsets, 9, 9, causal=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", ["varlen", "kernel"])
def test_one_graph(kind, dynamic):
    torch._dynamo.reset()
    function = flashgen.load("d16-fp32-causal", "cpu") if kind == "kernel" else packed
    compiled = torch.compile(
        lambda *qkv: function(*qkv) * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for length in (9, 12):
        leaves = draw(*[((1,) if kind == "kernel" else ()) + (length, 2, 16)] * 3)
        found = []
        for call in (lambda *qkv: function(*qkv) * 2, compiled):
            out = call(*leaves)
            found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_calls_that_are_alike_share_a_plan_and_others_do_not():
    calls.forget()
    q, k, v = draw(*[(1, 9, 2, 16)] * 3)
    kinds = [{"causal": True}, {"causal": True, "softmax_scale": 0.5}, {"window": (3, 1)}]
    kinds += [{"window": (2, 1)}, {"causal": True, "dropout_p": 0.5}]
    for options in kinds * 2:
        flashgen.attention(q, k, v, **options)
    assert len(calls._plans) == len(kinds)
    for options in kinds[:4]:
        planned = flashgen.attention(q, k, v, **options)
        calls.forget()
        assert torch.equal(planned, flashgen.attention(q, k, v, **options))


def test_what_a_plan_does_not_know_is_checked():
    q, k, v = (t.detach() for t in draw(*[(1, 9, 2, 16)] * 3))
    flashgen.attention(q, k, v)
    with pytest.raises(ArgumentError, match="k: expected head_dim"):
        flashgen.attention(q, k[..., :8], v)
    with pytest.raises(ArgumentError, match="expected a dense tensor"):
        flashgen.attention(q, k.to_sparse(), v)
