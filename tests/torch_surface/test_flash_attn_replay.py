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
