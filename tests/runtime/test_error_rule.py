from __future__ import annotations

import math

import pytest
import torch

from flashgen.runtime import error_rule, reference


def inputs(batch=2, seqlen_q=5, seqlen_k=7, heads=4, heads_kv=2, d=8, dv=16, dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    q = normal(batch, seqlen_q, heads, d)
    k, v = normal(batch, seqlen_k, heads_kv, d), normal(batch, seqlen_k, heads_kv, dv)
    return q, k, v, normal(batch, seqlen_q, heads, dv), normal(batch, heads, seqlen_q)


def test_compare_finds_the_fault():
    ref = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 3, 4)
    eager = ref.to(torch.float16)
    ours = eager.clone()
    assert error_rule.compare(ours, ref, eager).ok
    ours[1, 2, 0] += 0.25
    found = error_rule.compare(ours, ref, eager)
    assert not found.ok and found.coordinate == (1, 2, 0)
    assert found.max_error == pytest.approx(0.25, rel=1e-2)
    assert "(1, 2, 0)" in str(found)
    ours[0, 0, 1] = math.nan
    found = error_rule.compare(ours, ref, eager)
    assert not found.ok and found.coordinate == (0, 0, 1) and found.max_error == math.inf


def test_compare_and_infinities():
    ref = torch.tensor([1.0, -math.inf], dtype=torch.float64)
    assert error_rule.compare(ref.float(), ref, ref.float()).ok
    assert not error_rule.compare(torch.tensor([1.0, -1e30]), ref, ref.float()).ok
    assert not error_rule.compare(torch.tensor([-math.inf] * 2), ref, ref.float()).ok
    nan = torch.tensor([math.nan, -math.inf])
    assert not error_rule.compare(nan, ref, nan).ok


def test_fp64_is_held_to_a_relative_bound():
    ref = torch.tensor([3.0, -5.0], dtype=torch.float64)
    assert error_rule.error_bound(ref, ref, torch.float64) == pytest.approx(5e-10)
    assert error_rule.compare(ref + 4e-10, ref, ref).ok
    assert not error_rule.compare(ref + 6e-10, ref, ref).ok


def test_storage_floors_are_what_the_rounding_of_out_does():
    q, k, v, dout, dlse = inputs(seqlen_q=33, seqlen_k=1, dtype=torch.float16)
    problem = reference.Problem(q, k, v)
    found = reference.evaluate(problem, dout, dlse, dtype=torch.float64)
    out = found.out * 1.234  # as dropout's scale does: no longer exact in fp16
    ref = reference.Attention(out, found.lse, found.gradients)
    stored = (dout.double() * (out.half().double() - out)).sum(-1).transpose(1, 2)
    scale = 1 / math.sqrt(q.shape[3])
    dq = torch.einsum("bhi,bhd->bihd", stored, k[:, 0].double().repeat_interleave(2, 1)) * scale
    floors = error_rule.storage_floors(problem, dout, dlse, ref)
    floor_dq, floor_dk, floor_dv = (floors[name] for name in ("dq", "dk", "dv"))
    assert floor_dq == pytest.approx(2 * dq.abs().max().item(), rel=0.05)
    assert 0 < floor_dk < 33 * floor_dq * q.abs().max().item()
    assert 0 < floor_dv < 1e-4  # the weight is 1 within fp32's rounding


def test_storage_floors_of_many_keys_are_small():
    q, k, v, dout, dlse = inputs(seqlen_q=33, seqlen_k=500)
    problem = reference.Problem(q, k, v)
    ref = reference.evaluate(problem, dout, dlse)
    floors = error_rule.storage_floors(problem, dout, dlse, ref)
    assert all(0 < floor < 1e-13 for floor in floors.values())


def test_a_floor_replaces_a_smaller_error_of_eager():
    ref = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert error_rule.error_bound(ref, ref, torch.float16, floor=0.5) == 0.5
    assert error_rule.error_bound(ref, ref + 1, torch.float16, floor=0.5) == 2.0
