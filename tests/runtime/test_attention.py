from __future__ import annotations

import logging
import math

import pytest
import torch

import flashgen
from flashgen.generator.errors import ArgumentError
from flashgen.generator.variant import parse_key
from flashgen.runtime import calls
from flashgen.runtime.log import logger
from flashgen.runtime.verify import Inputs, compare_results


@pytest.fixture(scope="module", autouse=True)
def module_cache(tmp_path_factory):
    """A cache of this file's own, and no kernel remembered from other files."""
    calls.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path_factory.mktemp("attention")))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.delenv("FLASHGEN_SPECS", raising=False)
        yield
    calls.forget()


@pytest.fixture
def chosen(monkeypatch):
    """The keys that calls load, in order."""
    keys = []
    make = calls.make_kernel

    def noted(key, device, passes):
        keys.append(key)
        return make(key, device, passes)

    monkeypatch.setattr(calls, "make_kernel", noted)
    return keys


def inputs(d=16, dv=None, dtype=torch.float32, seqlen_q=20, seqlen_k=33, heads_kv=2):
    gen = torch.Generator().manual_seed(0)
    dv = dv or d
    shapes = [(2, seqlen_q, 4, d), (2, seqlen_k, heads_kv, d), (2, seqlen_k, heads_kv, dv)]
    shapes.append((2, seqlen_q, 4, dv))
    return [torch.randn(s, generator=gen).to(dtype) for s in shapes]


@pytest.mark.parametrize(
    ("d", "dv", "dtype", "options", "key"),
    [
        (16, 16, torch.float32, {"causal": True}, "d16-fp32-causal"),
        (31, 31, torch.float32, {"causal": True}, "d32-fp32-causal"),  # R19
        (100, 100, torch.float64, {}, "d104-fp64"),  # R19
        (5, 17, torch.float32, {"softmax_scale": 0.2}, "d8v24-fp32"),
        (16, 16, torch.float32, {"deterministic": True}, "d16-fp32-det"),
    ],
)
def test_result_and_gradients(chosen, d, dv, dtype, options, key):
    *tensors, dout = inputs(d, dv, dtype)
    leaves = [t.requires_grad_() for t in tensors]
    out, lse = flashgen.attention(*leaves, return_lse=True, **options)
    assert chosen == [key]
    dlse = torch.linspace(-1, 1, lse.numel(), dtype=lse.dtype).view(lse.shape)
    grads = torch.autograd.grad([out, lse], leaves, [dout, dlse])
    ours = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))
    found = compare_results(
        parse_key(key),
        Inputs(*(t.detach() for t in tensors), dout, dlse),
        {name: tensor.detach() for name, tensor in ours.items()},
        softmax_scale=options.get("softmax_scale"),  # else 1 / sqrt of the unpadded size
    )
    assert all(one.ok for one in found.values()), found


@pytest.mark.parametrize(
    ("p", "key"),
    [
        (0.0, "d16-fp32"),
        (0.1, "d16-fp32-dropout"),
        (1.0, "d16-fp32-dropout"),
        (1 / 512, "d16-fp32-dropout16"),
        (0.001, "d16-fp32-dropout16"),
        (0.9995, "d16-fp32-dropout16"),
    ],
)
def test_dropout_chooses_the_bits_it_needs(chosen, p, key):
    calls.forget()
    q, k, v, _ = inputs()
    assert flashgen.attention(q, k, v, dropout_p=p).isfinite().all()
    assert chosen == [key]


def test_torch_seeds_dropout():
    q, k, v, _ = inputs()
    torch.manual_seed(5)
    first, second = (flashgen.attention(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(5)
    again = flashgen.attention(q, k, v, dropout_p=0.5)
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_first_use_builds_with_a_log_line_for_each_pass_and_later_ones_do_not(chosen):
    lines = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger().addHandler(handler)
    try:
        for seqlen in (3, 20, 33):
            q, k, v, _ = inputs(d=48, seqlen_q=seqlen)
            flashgen.attention(q, k, v, causal=True)
    finally:
        logger().removeHandler(handler)
    assert chosen == ["d48-fp32-causal"]
    assert sorted(line.split(" in ")[0] for line in lines) == [
        "built d48-fp32-causal backward for cpu",
        "built d48-fp32-causal forward for cpu",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 20, 16)}, r"q: expected a tensor \(batch.*got \(2, 20, 16\)"),
        ({"v": 3}, r"v: expected a tensor \(batch, seqlen, heads, head_dim\), got int"),
        ({"k": torch.zeros(2, 33, 2, 24)}, "k: expected head_dim 16 as q, got 24"),
        ({"q": torch.zeros(2, 20, 4, 16).long()}, "q: expected a dtype of .* got torch.int64"),
        ({"v": torch.zeros(2, 33, 2, 264)}, "v: expected head_dim from 1 to 256, got 264"),
        ({"v": torch.zeros(2, 33, 2, 16).half()}, "v: expected dtype torch.float32"),
        ({"dropout_p": 1.5}, "dropout_p: expected a probability"),
        ({"dropout_p": math.nan}, "dropout_p: expected a probability"),
        ({"dropout_p": 1e-7}, "rounds to 0 at 16 bits"),
        ({"softmax_scale": math.nan}, "softmax_scale: expected a finite number"),
    ],
)
def test_wrong_arguments_build_nothing(chosen, change, message):
    q, k, v, _ = inputs()
    with pytest.raises(ArgumentError, match=message):
        flashgen.attention(**({"q": q, "k": k, "v": v} | change))
    assert chosen == []


def test_a_call_that_equals_an_earlier_one_is_checked_by_its_types_too():
    q, k, v, _ = inputs(32, 32, torch.float32)
    flashgen.attention(q, k, v, causal=True)
    with pytest.raises(ArgumentError, match="causal: expected True or False, got 1"):
        flashgen.attention(q, k, v, causal=1)


def test_compiles_to_one_graph():
    torch._dynamo.reset()
    compiled = torch.compile(flashgen.attention, fullgraph=True, backend="aot_eager")
    for d in (16, 31):
        *tensors, dout = inputs(d)
        results = []
        for function in (flashgen.attention, compiled):
            leaves = [t.clone().requires_grad_() for t in tensors]
            out = function(*leaves, causal=True)
            out.backward(dout)
            results.append([out.detach(), *(leaf.grad for leaf in leaves)])
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_compiled_dropout_draws_anew_and_is_seeded():
    torch._dynamo.reset()
    q, k, v, _ = inputs()
    compiled = torch.compile(flashgen.attention, fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    first, second = (compiled(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(compiled(q, k, v, dropout_p=0.5), first)
    assert not torch.equal(first, second)
