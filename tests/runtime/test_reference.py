from __future__ import annotations

import math

import pytest
import torch

from flashgen.runtime import reference
from flashgen.runtime.philox import dropout_threshold, keep_mask


def inputs(batch=2, seqlen_q=5, seqlen_k=7, heads=4, heads_kv=2, d=8, dv=16, dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    q = normal(batch, seqlen_q, heads, d)
    k, v = normal(batch, seqlen_k, heads_kv, d), normal(batch, seqlen_k, heads_kv, dv)
    return q, k, v, normal(batch, seqlen_q, heads, dv), normal(batch, heads, seqlen_q)


def dropout_for(q, k, p):
    return reference.Dropout.of(q, k, torch.tensor([5, 8]), dropout_threshold(p, 8), 8)


def by_loops(q, k, v, causal, scale, dropout):
    """Attention of one element at a time, from the sentences of the semantics."""
    batch, seqlen_q, heads, _ = q.shape
    seqlen_k, group = k.shape[1], heads // k.shape[2]
    out = torch.zeros(batch, seqlen_q, heads, v.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, seqlen_q), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(seqlen_q):
                seen = [j for j in range(seqlen_k) if not causal or j <= i + seqlen_k - seqlen_q]
                weights = [math.exp(scale * float(q[b, i, h] @ k[b, j, h // group])) for j in seen]
                for j, weight in zip(seen, weights, strict=True):
                    kept = 1.0
                    if dropout is not None:
                        kept = dropout.scale * bool(dropout.keep[b, h, i, j])
                    out[b, i, h] += kept * weight / sum(weights) * v[b, j, h // group]
                if seen:
                    lse[b, h, i] = math.log(sum(weights))
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(5, 7), (7, 5), (1, 1), (3, 3)])
def test_equals_loops(causal, p, seqlen_q, seqlen_k):
    q, k, v, _, _ = inputs(seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    dropout = dropout_for(q, k, p) if p else None
    out, lse = reference.attention(q, k, v, causal=causal, softmax_scale=0.4, dropout=dropout)
    expected_out, expected_lse = by_loops(q, k, v, causal, 0.4, dropout)
    torch.testing.assert_close(out, expected_out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_the_closed_form(causal):
    q, k, v, dout, dlse = inputs(seqlen_q=9, seqlen_k=6, heads_kv=4)
    dropout = dropout_for(q, k, 0.25)
    got = reference.evaluate(q, k, v, dout, dlse, causal=causal, dropout=dropout)
    scale = 1 / math.sqrt(q.shape[3])
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if causal:
        s = s.masked_fill(torch.ones(9, 6).triu(6 - 9 + 1).bool(), -math.inf)
    p = torch.exp(s - got.lse.unsqueeze(-1)).nan_to_num(0.0)
    kept = dropout.keep.double() * dropout.scale
    dp = torch.einsum("bihd,bjhd->bhij", dout, v) * kept
    delta = (dout * got.out).sum(-1).transpose(1, 2)
    ds = p * (dp - delta.unsqueeze(-1) + dlse.unsqueeze(-1)) * scale
    for grad, expected in [
        (got.dq, torch.einsum("bhij,bjhd->bihd", ds, k)),
        (got.dk, torch.einsum("bhij,bihd->bjhd", ds, q)),
        (got.dv, torch.einsum("bhij,bihd->bjhd", p * kept, dout)),
    ]:
        torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-12)


def test_blind_rows():  # R07
    q, k, v, dout, dlse = inputs(seqlen_q=8, seqlen_k=3)
    got = reference.evaluate(q, k, v, dout, dlse, causal=True)
    assert torch.all(got.out[:, :5] == 0) and torch.all(got.lse[:, :, :5] == -math.inf)
    assert torch.all(got.dq[:, :5] == 0)
    assert all(torch.isfinite(t).all() for t in (got.out, got.dq, got.dk, got.dv))


def test_no_keys():
    q, k, v, dout, dlse = inputs(seqlen_k=0)
    got = reference.evaluate(q, k, v, dout, dlse)
    assert torch.all(got.out == 0) and torch.all(got.lse == -math.inf) and torch.all(got.dq == 0)


@pytest.mark.parametrize("limit", [1, 5 * 7 * 2, 5 * 7 * 4 + 1])
def test_chunks_do_not_show(monkeypatch, limit):
    q, k, v, dout, dlse = inputs(batch=3)
    dropout = dropout_for(q, k, 0.5)
    whole = reference.evaluate(q, k, v, dout, dlse, causal=True, dropout=dropout)
    monkeypatch.setattr(reference, "_CHUNK_ELEMS", limit)
    parts = reference.evaluate(q, k, v, dout, dlse, causal=True, dropout=dropout)
    for name in ("out", "lse", "dq", "dk", "dv"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_eager_is_the_same_function_in_another_dtype():
    q, k, v, dout, _ = inputs(seqlen_q=33, seqlen_k=65, dtype=torch.float16)
    ref = reference.evaluate(q, k, v, dout, dtype=torch.float64)
    eager = reference.evaluate(q, k, v, dout)
    assert eager.out.dtype == eager.dq.dtype == torch.float16 and eager.lse.dtype == torch.float32
    bound = reference.error_bound(ref.out, eager.out, torch.float16)
    assert 1e-5 < bound < 1e-2
    assert reference.compare(eager.out, ref.out, eager.out).ok


def test_compare_finds_the_fault():
    ref = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 3, 4)
    eager = ref.to(torch.float16)
    ours = eager.clone()
    assert reference.compare(ours, ref, eager).ok
    ours[1, 2, 0] += 0.25
    found = reference.compare(ours, ref, eager)
    assert not found.ok and found.coordinate == (1, 2, 0)
    assert found.max_error == pytest.approx(0.25, rel=1e-2)
    assert "(1, 2, 0)" in str(found)
    ours[0, 0, 1] = math.nan
    found = reference.compare(ours, ref, eager)
    assert not found.ok and found.coordinate == (0, 0, 1) and found.max_error == math.inf


def test_compare_and_infinities():
    ref = torch.tensor([1.0, -math.inf], dtype=torch.float64)
    assert reference.compare(ref.float(), ref, ref.float()).ok
    assert not reference.compare(torch.tensor([1.0, -1e30]), ref, ref.float()).ok
    assert not reference.compare(torch.tensor([-math.inf] * 2), ref, ref.float()).ok
    nan = torch.tensor([math.nan, -math.inf])
    assert not reference.compare(nan, ref, nan).ok


def test_fp64_is_held_to_a_relative_bound():
    ref = torch.tensor([3.0, -5.0], dtype=torch.float64)
    assert reference.error_bound(ref, ref, torch.float64) == pytest.approx(5e-10)
    assert reference.compare(ref + 4e-10, ref, ref).ok
    assert not reference.compare(ref + 6e-10, ref, ref).ok


def test_dropout_is_the_mask_of_the_rng_state():
    q, k, _, _, _ = inputs()
    dropout = dropout_for(q, k, 0.5)
    assert torch.equal(dropout.keep, keep_mask(5, 8, 2, 4, 5, 7, 128, 8))
    assert dropout.scale == 2.0


def test_storage_floors_are_what_the_rounding_of_out_does():
    q, k, v, dout, dlse = inputs(seqlen_q=33, seqlen_k=1, dtype=torch.float16)
    found = reference.evaluate(q, k, v, dout, dlse, dtype=torch.float64)
    out = found.out * 1.234  # as dropout's scale does: no longer exact in fp16
    ref = reference.Attention(out, found.lse, found.dq, found.dk, found.dv)
    stored = (dout.double() * (out.half().double() - out)).sum(-1).transpose(1, 2)
    scale = 1 / math.sqrt(q.shape[3])
    dq = torch.einsum("bhi,bhd->bihd", stored, k[:, 0].double().repeat_interleave(2, 1)) * scale
    floor_dq, floor_dk, floor_dv = reference.storage_floors(q, k, v, dout, dlse, ref)
    assert floor_dq == pytest.approx(2 * dq.abs().max().item(), rel=0.05)
    assert 0 < floor_dk < 33 * floor_dq * q.abs().max().item()
    assert 0 < floor_dv < 1e-4  # the weight is 1 within fp32's rounding


def test_storage_floors_of_many_keys_are_small():
    q, k, v, dout, dlse = inputs(seqlen_q=33, seqlen_k=500)
    ref = reference.evaluate(q, k, v, dout, dlse)
    floors = reference.storage_floors(q, k, v, dout, dlse, ref)
    assert all(0 < floor < 1e-13 for floor in floors)


def test_a_floor_replaces_a_smaller_error_of_eager():
    ref = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert reference.error_bound(ref, ref, torch.float16, floor=0.5) == 0.5
    assert reference.error_bound(ref, ref + 1, torch.float16, floor=0.5) == 2.0
