"""Inputs on which other attention systems failed, through flash_attn's functions.

The cases are those of tests/replay_cases.py that are calls of flash_attn, and the plain ones of
the list, in smaller sizes where they are large.
"""

from __future__ import annotations

import math

import pytest
import torch
from replay_cases import CASES, by_formula

from flashgen import flash_attn
from flashgen.runtime import loader

PACKED = [case for case in CASES if case.name in ("r02", "r03", "r05", "r17")]
DENSE = [case for case in CASES if case.name == "r06"]


def normal(*shapes, dtype=torch.float32, factor=1.0):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(shape, generator=generator) * factor).to(dtype).requires_grad_()
        for shape in shapes
    ]


def check(found, expected, dtype):
    tolerance = {torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for name, tensor in found.items():
        wanted = expected[name].nan_to_num(neginf=-1e30)
        ours = tensor.double().nan_to_num(neginf=-1e30)
        scale = wanted[wanted > -1e29].abs().max().clamp(min=1.0)
        assert (ours - wanted).abs().max() <= tolerance * scale, name


@pytest.mark.parametrize("case", [*PACKED, *DENSE], ids=lambda case: case.name)
def test_case(case):
    data = case.inputs()
    leaves = [t.requires_grad_() for t in (data.q, data.k, data.v)]
    options = {"return_attn_probs": True}
    if case in PACKED:
        offsets = [data.arguments[name] for name in ("cu_seqlens_q", "cu_seqlens_k")]
        longest = [int(o.diff().max()) for o in offsets]
        arguments = (*leaves, *offsets, *longest)
        out, lse, _ = flash_attn.flash_attn_varlen_func(*arguments, causal=True, **options)
    else:
        window = (data.arguments["window_left"], data.arguments["window_right"])
        out, lse, _ = flash_attn.flash_attn_func(*leaves, window_size=window, **options)
    rows = lse.isfinite()
    grads = torch.autograd.grad([out, lse], leaves, [data.dout, torch.where(rows, data.dlse, 0.0)])
    found = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))
    assert all(tensor.isfinite().all() for name, tensor in found.items() if name != "lse")
    check(found, by_formula(case, data), out.dtype)


def test_r01_one_token():
    q, k, v = normal(*[(1, 1, 1, 16)] * 3, dtype=torch.float16, factor=3.0)
    out = flash_attn.flash_attn_func(q, k, v)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))
    assert torch.equal(out, v)


def test_r07_more_queries_than_keys():
    q, k, v = normal((1, 64, 1, 16), *[(1, 32, 1, 16)] * 2, dtype=torch.float16)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    (dq,) = torch.autograd.grad(out.sum(), q)
    assert (out[:, :32] == 0).all() and (lse[..., :32] == -math.inf).all()
    assert (dq[:, :32] == 0).all() and out[:, 32:].isfinite().all()


def test_r16_and_r26_strides():
    (packed,) = normal((2, 24, 3, 2, 16), dtype=torch.float16)
    q, k, v = packed.unbind(2)
    expected = flash_attn.flash_attn_func(*(t.contiguous() for t in (q, k, v)))
    assert torch.equal(flash_attn.flash_attn_func(q, k, v), expected)
    last = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (q, k, v)]
    assert last[0].stride(-1) != 1
    assert torch.equal(flash_attn.flash_attn_func(*last), expected)


def test_r19_head_sizes_that_no_kernel_has():
    q, k, v = normal(*[(1, 12, 2, 13)] * 3, dtype=torch.float16)
    out = flash_attn.flash_attn_func(q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(t.float().transpose(1, 2) for t in (q, k, v))
    )
    torch.testing.assert_close(out.float(), expected.transpose(1, 2), rtol=4e-3, atol=4e-3)


def test_r23_other_lengths_build_nothing(monkeypatch):
    q, k, v = normal(*[(1, 5, 1, 16)] * 3, dtype=torch.float16)
    flash_attn.flash_attn_func(q, k, v)
    monkeypatch.setattr(loader, "build", None)
    for length in range(1, 60):
        q, k = torch.zeros(2, length, 2, 16).half(), torch.zeros(2, 61 - length, 1, 16).half()
        assert flash_attn.flash_attn_func(q, k, k).shape == q.shape


def test_r27_deterministic_gradients_repeat():
    q, k, v = normal(*[(1, 40, 2, 16)] * 3, dtype=torch.float16)
    results = []
    for _ in range(20):
        out = flash_attn.flash_attn_func(q, k, v, deterministic=True)
        results.append(torch.cat(torch.autograd.grad(out.square().sum(), (q, k, v))))
    assert all(torch.equal(results[0], one) for one in results[1:])


def exact(q, k, v):
    """Attention of (batch, seqlen, heads, head_dim) in fp64, with its graph."""
    heads = [t.double().transpose(1, 2) for t in (q, k, v)]
    return torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)


def check_gradients(q, k, v, out):
    dout = torch.ones_like(out)
    ours = torch.autograd.grad(out, (q, k, v), dout)
    wanted = torch.autograd.grad(exact(q, k, v), (q, k, v), dout.double())
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(130, 1, 4, 16), (70, 15, 2, 16)])
def test_r04_many_batches(shape):
    q, k, v = normal(*[shape] * 3, dtype=torch.float16)
    check_gradients(q, k, v, flash_attn.flash_attn_func(q, k, v))


def test_r15_a_part_of_the_keys_after_all_of_them():
    q, k, v = normal(*[(1, 40, 2, 16)] * 3, dtype=torch.float16)
    flash_attn.flash_attn_func(q, k, v)
    part = [t[:, :-13].detach().requires_grad_() for t in (k, v)]
    out = flash_attn.flash_attn_func(q, *part)
    check_gradients(q, *part, out)


def test_r20_values_of_another_size():
    q, k, v = normal((1, 40, 2, 24), (1, 40, 2, 24), (1, 40, 2, 16), dtype=torch.float16)
    out = flash_attn.flash_attn_func(q, k, v)
    assert out.shape == (1, 40, 2, 16)
    check_gradients(q, k, v, out)


def test_r22_sequences_without_queries_and_a_single_head_of_keys():
    ends_q, ends_k = (0, 0, 75, 128, 128), (0, 158, 267, 320, 512)
    q, k, v = normal((128, 4, 256), *[(512, 1, 256)] * 2, dtype=torch.float16)
    offsets = [torch.tensor(ends, dtype=torch.int32) for ends in (ends_q, ends_k)]
    out = flash_attn.flash_attn_varlen_func(q, k, v, *offsets, 75, 192)
    parts = []
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        parts.append(exact(q[None, a:b], *(t[None, c:d].expand(-1, -1, 4, -1) for t in (k, v)))[0])
    wanted = torch.cat(parts)
    torch.testing.assert_close(out, wanted.half(), rtol=4e-3, atol=4e-3)
    dout = torch.ones_like(out)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    for one, other in zip(
        grads, torch.autograd.grad(wanted, (q, k, v), dout.double()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    assert (grads[1][:158] == 0).all() and (grads[2][320:] == 0).all()  # no query's keys


@pytest.mark.parametrize("shape", [(65_537, 1, 1, 16), (1, 2, 65_537, 16)])
def test_r24_more_batches_or_heads_than_a_grid_has_rows(shape):
    q, k, v = normal(*[shape] * 3, dtype=torch.float16)
    check_gradients(q, k, v, flash_attn.flash_attn_func(q, k, v))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_r25_what_no_query_sees_reaches_nothing(value):
    q, k, v = normal(*[(1, 40, 2, 16)] * 3, dtype=torch.float16)
    spoilt = [t.detach().clone() for t in (k, v)]
    for tensor in spoilt:
        tensor[:, :20] = value  # the first query's place is 30, and it looks back by 5
        tensor.requires_grad_()
    window = {"window_size": (5, 0)}
    found = []
    for keys in ((k, v), spoilt):
        out = flash_attn.flash_attn_func(q[:, :10], *keys, **window)
        found.append([out, *torch.autograd.grad(out.sum(), (q, *keys))])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.001])
def test_r28_the_share_of_dropped_elements(p):
    q, k, _ = normal(*[(4, 160, 2, 16)] * 3, dtype=torch.float16)
    torch.manual_seed(0)
    with torch.no_grad():
        _, _, dmask = flash_attn.flash_attn_func(q, k, k, p, return_attn_probs=True)
    steps = 1 << (16 if p < 1 / 512 else 8)
    realised = round(p * steps) / steps
    assert abs(realised - p) <= 1 / (2 * steps)
    share = torch.signbit(dmask).double().mean().item()
    assert abs(share - realised) <= 4 * math.sqrt(realised * (1 - realised) / dmask.numel())
