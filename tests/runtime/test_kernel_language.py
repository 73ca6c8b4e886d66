"""Calls of kernels whose variants have captures, params, sinks and packed sequences."""

from __future__ import annotations

import math

import pytest
import torch

import flashgen
from flashgen.generator.arch import parse_target
from flashgen.generator.errors import ArgumentError
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES
from flashgen.runtime import (
    operators,
    ops,
)
from flashgen.runtime import passes as passes_module
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.cache import Cache
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

ALL = """head_dim: 16
dtype: fp32
window: runtime
softcap: runtime
alibi: true
sink: {per: head, grad: true}
captures:
  bias: {dims: [num_heads, seqlen_k], dtype: fp32, grad: true}
params: {cap: {runtime: float}, W: {runtime: int}}
mask: "kv_idx % 7 != W"
score: "score * cap + bias[h, kv_idx]"
"""
PACKED = """head_dim: 16
dtype: fp32
layout: varlen
causal: true
sink: {per: head, grad: true}
captures: {scale: {dims: [batch], dtype: bf16, grad: true}}
score: "score * scale[b]"
"""
BLOCKS = "head_dim: 16\ndtype: fp32\nblock_mask: {q: 16, kv: 16}\nmask: (q_idx + kv_idx) % 50 < 7\n"


def variant_of(text):
    return load_specs(text, "test.yaml")[0].variants[0]


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    """Every kernel of this file, built before the first test."""
    root = tmp_path_factory.mktemp("language")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(root))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        variants = {text: variant_of(text) for text in (ALL, PACKED, BLOCKS)}
        target = parse_target("cpu")
        requests = [BuildRequest(v, name, target) for v in variants.values() for name in PASSES]
        build(requests, cache=Cache(root))
        yield {text: Kernel(v, torch.device("cpu")) for text, v in variants.items()}


def dense(batch=2, seqlen_q=9, seqlen_k=13):
    generator = torch.Generator().manual_seed(0)
    sizes = (seqlen_q, 4), (seqlen_k, 2), (seqlen_k, 2), (seqlen_q, 4)
    return [torch.randn(batch, n, h, 16, generator=generator) for n, h in sizes]


def arguments(**change):
    generator = torch.Generator().manual_seed(1)
    return {
        "window_left": 9,
        "window_right": None,
        "softcap": 3.0,
        "alibi_slopes": torch.rand(4, generator=generator),
        "sink": torch.randn(4, generator=generator),
        "bias": torch.randn(4, 13, generator=generator),
        "cap": 0.5,
        "W": 3,
    } | change


def packed(tail=2):
    generator = torch.Generator().manual_seed(0)
    sizes = (12 + tail, 4), (20, 2), (20, 2), (12 + tail, 4)
    tensors = [torch.randn(n, h, 16, generator=generator) for n, h in sizes]
    return tensors, {
        "cu_seqlens_q": torch.tensor([0, 5, 5, 12]),
        "cu_seqlens_k": torch.tensor([0, 8, 9, 20]),
        "sink": torch.randn(4, generator=generator),
        "scale": torch.randn(3, generator=generator).bfloat16(),
    }


@pytest.mark.parametrize("text", [ALL, PACKED, BLOCKS])
@pytest.mark.parametrize("shape", [Shape(2, 4, 2, 57, 75), Shape(1, 2, 1, 40, 20)], ids=str)
def test_random_calls_obey_the_error_rule(kernels, text, shape):
    for name, found in compare_call(kernels[text], shape, "cpu").items():
        assert found.ok, f"{name}: {found}"


def test_autograd_gives_what_backward_gives(kernels):
    kernel = kernels[ALL]
    q, k, v, dout = dense()
    given = arguments()
    out, lse, _ = kernel.forward(q, k, v, **given)
    grads = kernel.backward(dout, q, k, v, out, lse, **given)
    assert set(grads.captures) == {"sink", "bias"}
    leaves = {n: t.clone().requires_grad_() for n, t in (("q", q), ("k", k), ("v", v))}
    learned = {n: given[n].clone().requires_grad_() for n in ("sink", "bias")}
    kernel(*leaves.values(), **given | learned).backward(dout)
    expected = {"q": grads.dq, "k": grads.dk, "v": grads.dv, **grads.captures}
    for name, leaf in (leaves | learned).items():
        assert torch.equal(leaf.grad, expected[name]), name


def test_dtypes_and_shapes_of_gradients(kernels):
    kernel = kernels[ALL]
    q, k, v, dout = dense()
    half = arguments(sink=torch.randn(4).half(), bias=torch.randn(4, 1).expand(4, 13))
    out, lse, _ = kernel.forward(q, k, v, **half)
    grads = kernel.backward(dout, q, k, v, out, lse, **half)
    assert grads.captures["sink"].dtype == torch.float16
    assert grads.captures["bias"].shape == (4, 13)
    base = torch.randn(4, 1, requires_grad=True)
    kernel(q, k, v, **half | {"bias": base.expand(4, 13)}).backward(dout)
    assert base.grad.shape == (4, 1)
    (tensors, given) = packed()
    out, lse, _ = kernels[PACKED].forward(*tensors[:3], **given)
    grads = kernels[PACKED].backward(tensors[3], *tensors[:3], out, lse, **given)
    assert grads.captures["scale"].dtype == torch.bfloat16
    assert lse.shape == (4, 14) and out.shape == (14, 4, 16)


def test_captures_of_any_strides(kernels):
    kernel = kernels[ALL]
    q, k, v, _ = dense()
    given = arguments()
    odd = torch.randn(13, 8)[:, ::2].t()
    out = kernel(q, k, v, **given | {"bias": odd})
    assert torch.equal(out, kernel(q, k, v, **given | {"bias": odd.contiguous()}))


def test_params_change_nothing_but_the_numbers(kernels, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a call loaded or built something")

    monkeypatch.setattr(passes_module, "load_passes", refuse)
    q, k, v, _ = dense()
    outs = [
        kernels[ALL](q, k, v, **arguments(**change))
        for change in ({}, {"cap": 0.7}, {"W": 2}, {"softcap": 9}, {"window_left": None})
    ]
    assert all(not torch.equal(a, b) for i, a in enumerate(outs) for b in outs[:i])


def test_a_window_without_bounds_is_none(kernels):
    q, k, v, _ = dense()
    outs = [kernels[ALL](q, k, v, **arguments(window_left=n)) for n in (None, 12, 2**40, 11)]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
    assert not torch.equal(outs[0], outs[3])


def test_arguments_are_checked(kernels):
    q, k, v, dout = dense()
    for call in (kernels[ALL], kernels[ALL].forward):
        with pytest.raises(ArgumentError, match="got no bias"):
            call(q, k, v, **{n: x for n, x in arguments().items() if n != "bias"})
        with pytest.raises(ArgumentError, match="Did you mean softcap?"):
            call(q, k, v, softcapp=3, **arguments())
    out, lse, _ = kernels[ALL].forward(q, k, v, **arguments())
    with pytest.raises(ArgumentError, match="got no sink"):
        kernels[ALL].backward(dout, q, k, v, out, lse, bias=arguments()["bias"])
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(ArgumentError, match="alibi_slopes: expected a tensor without a gradient"):
        kernels[ALL](q, k, v, **arguments(alibi_slopes=slopes))
    with torch.no_grad():
        kernels[ALL](q, k, v, **arguments(alibi_slopes=slopes))
    tensors, given = packed()
    with pytest.raises(ArgumentError, match=r"q: expected 3 dimensions \(total, heads, head_dim"):
        kernels[PACKED](q, *tensors[1:3], **given)
    with pytest.raises(ArgumentError, match="v: expected total_k 20 as k, got 19"):
        kernels[PACKED](*tensors[:2], tensors[2][:19], **given)


def test_packed_calls_without_keys_or_queries(kernels):
    kernel = kernels[PACKED]
    (q, k, v, dout), given = packed()
    given["cu_seqlens_k"] = torch.tensor([0, 0, 0, 0])
    out, lse, _ = kernel.forward(q, k[:0], v[:0], **given)
    assert not out.any() and (lse[:, 12:] == -math.inf).all()
    assert torch.equal(lse[:, :12], given["sink"].view(4, 1).expand(4, 12))
    dlse = torch.randn(4, 14)
    grads = kernel.backward(dout, q, k[:0], v[:0], out, lse, dlse=dlse, **given)
    torch.testing.assert_close(grads.captures["sink"], dlse[:, :12].sum(1))
    assert not grads.dq.any() and not grads.captures["scale"].any()
    given["cu_seqlens_q"] = torch.tensor([0, 0, 0, 0])
    given["cu_seqlens_k"] = torch.tensor([0, 8, 9, 20])
    out, lse, _ = kernel.forward(q, k, v, **given)
    assert not out.any() and (lse == -math.inf).all()
    nothing = {"cu_seqlens_q": torch.tensor([0]), "cu_seqlens_k": torch.tensor([0])}
    nothing |= {"sink": given["sink"], "scale": torch.zeros(0, dtype=torch.bfloat16)}
    out, lse, _ = kernel.forward(q, k, v, **nothing)
    grads = kernel.backward(dout, q, k, v, out, lse, **nothing)
    assert not out.any() and not any(grad.any() for grad in grads[:3])
    assert grads.captures["scale"].shape == (0,) and not grads.captures["sink"].any()


def test_a_dense_call_without_keys_gives_the_sink(kernels):
    q, k, v, dout = dense(seqlen_k=0)
    given = arguments(bias=torch.zeros(4, 0))
    out, lse, _ = kernels[ALL].forward(q, k, v, **given)
    assert not out.any() and torch.equal(lse[1, :, 3], given["sink"])
    dlse = torch.randn(2, 4, 9)
    grads = kernels[ALL].backward(dout, q, k, v, out, lse, dlse=dlse, **given)
    torch.testing.assert_close(grads.captures["sink"], dlse.sum((0, 2)))


def test_block_mask_of_the_mask_changes_nothing(kernels):
    kernel = kernels[BLOCKS]
    q, k, v, _ = dense(seqlen_q=100, seqlen_k=120)
    blocks = kernel.block_mask(100, 120)
    assert blocks.shape == (1, 1, 7, 8) and not blocks.all() and blocks.any()
    all_blocks = torch.ones_like(blocks)
    out = kernel(q, k, v, block_mask=blocks)
    torch.testing.assert_close(out, kernel(q, k, v, block_mask=all_blocks))
    none = kernel(q, k, v, block_mask=torch.zeros_like(blocks))
    assert not none.any()


def test_compiles_to_one_graph(kernels):
    torch._dynamo.reset()
    q, k, v, dout = dense()
    given = arguments()
    slopes = given.pop("alibi_slopes")

    def step(q, k, v, sink, bias):
        more = given | {"sink": sink, "bias": bias, "alibi_slopes": slopes}
        return kernels[ALL](q * 2, k, v, **more).sin()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (step, compiled):
        leaves = [t.clone().requires_grad_() for t in (q, k, v, given["sink"], given["bias"])]
        out = function(*leaves)
        out.backward(dout)
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_packed_calls_compile(kernels):
    torch._dynamo.reset()
    tensors, given = packed()
    compiled = torch.compile(kernels[PACKED].__call__, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors[:3], **given), kernels[PACKED](*tensors[:3], **given))


def test_operators_are_sound(kernels):
    kernel = kernels[ALL]
    q, k, v, dout = dense()
    extras = kernel._signature.bind(q, k, arguments())
    ops.register(kernel)
    call = (None, kernel.handle, 0.25, 0, list(extras.tensors))
    call = (*call, *operators.split(extras.numbers))
    for slot in kernel.gradient_slots:
        call[4][slot].requires_grad_()
    torch.library.opcheck(
        torch.ops.flashgen.forward.default, (*(t.requires_grad_() for t in (q, k, v)), *call)
    )
    q, k, v = (t.detach() for t in (q, k, v))
    call = (*call[:4], [t.detach() for t in call[4]], *call[5:])
    out, lse = torch.ops.flashgen.forward(q, k, v, *call)
    torch.library.opcheck(
        torch.ops.flashgen.backward.default, (dout, q, k, v, out, lse, None, *call)
    )


def test_attention_takes_presets_as_arguments(kernels):
    q, k, v, dout = dense(seqlen_q=20)
    sink = torch.randn(4, requires_grad=True)
    options = {"window": (5, 0), "softcap": 2.0, "alibi_slopes": torch.rand(2, 4), "sink": sink}
    out = flashgen.attention(q, k, v, **options)
    out.backward(dout)
    kernel = flashgen.load("d16-fp32-windowrt-softcaprt-alibi-sink", "cpu")
    again = kernel(
        q, k, v, window_left=5, window_right=0, softcap=2.0,
        alibi_slopes=options["alibi_slopes"], sink=sink,
    )  # fmt: skip
    assert torch.equal(out, again) and sink.grad.any()
    with pytest.raises(ArgumentError, match=r"window: expected a pair \(left, right\) or None"):
        flashgen.attention(q, k, v, window=5)
    torch._dynamo.reset()
    compiled = torch.compile(flashgen.attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, **options), out)
