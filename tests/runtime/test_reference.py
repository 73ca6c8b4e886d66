from __future__ import annotations

import math

import pytest
import torch

from flashgen.generator.variant import parse_key
from flashgen.runtime import error_rule, reference
from flashgen.runtime.philox import dropout_threshold, keep_mask


def inputs(batch=2, seqlen_q=5, seqlen_k=7, heads=4, heads_kv=2, d=8, dv=16, dtype=torch.float64):
    gen = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    q = normal(batch, seqlen_q, heads, d)
    k, v = normal(batch, seqlen_k, heads_kv, d), normal(batch, seqlen_k, heads_kv, dv)
    return q, k, v, normal(batch, seqlen_q, heads, dv), normal(batch, heads, seqlen_q)


def dropout_for(p):
    return reference.Dropout(torch.tensor([5, 8]), dropout_threshold(p, 8), 8)


def problem_of(q, k, v, causal=False, **options):
    key = f"d{q.shape[3]}v{v.shape[3]}-fp64{'-causal' if causal else ''}"
    return reference.Problem.of(parse_key(key), q, k, v, **options)


def kept_by(dropout, q, k):
    heads = q.shape[2]
    return dropout.keep(range(len(q)), range(heads), heads, q.shape[1], k.shape[1])


def by_loops(q, k, v, causal, scale, dropout):
    """Attention of one element at a time, from the sentences of the semantics."""
    batch, seqlen_q, heads, _ = q.shape
    seqlen_k, group = k.shape[1], heads // k.shape[2]
    out = torch.zeros(batch, seqlen_q, heads, v.shape[3], dtype=torch.float64)
    keep = None if dropout is None else kept_by(dropout, q, k)
    lse = torch.full((batch, heads, seqlen_q), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(seqlen_q):
                seen = [j for j in range(seqlen_k) if not causal or j <= i + seqlen_k - seqlen_q]
                weights = [math.exp(scale * float(q[b, i, h] @ k[b, j, h // group])) for j in seen]
                for j, weight in zip(seen, weights, strict=True):
                    kept = 1.0
                    if dropout is not None:
                        kept = dropout.scale * bool(keep[b, h, i, j])
                    out[b, i, h] += kept * weight / sum(weights) * v[b, j, h // group]
                if seen:
                    lse[b, h, i] = math.log(sum(weights))
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(5, 7), (7, 5), (1, 1), (3, 3)])
def test_equals_loops(causal, p, seqlen_q, seqlen_k):
    q, k, v, _, _ = inputs(seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    dropout = dropout_for(p) if p else None
    problem = problem_of(q, k, v, causal, softmax_scale=0.4, dropout=dropout)
    out, lse = reference.attention(problem)
    expected_out, expected_lse = by_loops(q, k, v, causal, 0.4, dropout)
    torch.testing.assert_close(out, expected_out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_equal_the_closed_form(causal):
    q, k, v, dout, dlse = inputs(seqlen_q=9, seqlen_k=6, heads_kv=4)
    dropout = dropout_for(0.25)
    got = reference.evaluate(problem_of(q, k, v, causal, dropout=dropout), dout, dlse)
    scale = 1 / math.sqrt(q.shape[3])
    s = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    if causal:
        s = s.masked_fill(torch.ones(9, 6).triu(6 - 9 + 1).bool(), -math.inf)
    p = torch.exp(s - got.lse.unsqueeze(-1)).nan_to_num(0.0)
    kept = kept_by(dropout, q, k).double() * dropout.scale
    dp = torch.einsum("bihd,bjhd->bhij", dout, v) * kept
    delta = (dout * got.out).sum(-1).transpose(1, 2)
    ds = p * (dp - delta.unsqueeze(-1) + dlse.unsqueeze(-1)) * scale
    for grad, expected in [
        (got.named("dq"), torch.einsum("bhij,bjhd->bihd", ds, k)),
        (got.named("dk"), torch.einsum("bhij,bihd->bjhd", ds, q)),
        (got.named("dv"), torch.einsum("bhij,bihd->bjhd", p * kept, dout)),
    ]:
        torch.testing.assert_close(grad, expected, rtol=1e-12, atol=1e-12)


def test_blind_rows():  # R07
    q, k, v, dout, dlse = inputs(seqlen_q=8, seqlen_k=3)
    got = reference.evaluate(problem_of(q, k, v, True), dout, dlse)
    assert torch.all(got.out[:, :5] == 0) and torch.all(got.lse[:, :, :5] == -math.inf)
    assert torch.all(got.named("dq")[:, :5] == 0)
    assert all(
        torch.isfinite(t).all()
        for t in (got.out, got.named("dq"), got.named("dk"), got.named("dv"))
    )


def test_no_keys():
    q, k, v, dout, dlse = inputs(seqlen_k=0)
    got = reference.evaluate(problem_of(q, k, v), dout, dlse)
    assert (
        torch.all(got.out == 0)
        and torch.all(got.lse == -math.inf)
        and torch.all(got.named("dq") == 0)
    )


@pytest.mark.parametrize("limit", [1, 5 * 7 * 2, 5 * 7 * 4 + 1])
def test_chunks_do_not_show(monkeypatch, limit):
    q, k, v, dout, dlse = inputs(batch=3)
    dropout = dropout_for(0.5)
    problem = problem_of(q, k, v, True, dropout=dropout)
    whole = reference.evaluate(problem, dout, dlse)
    monkeypatch.setattr(reference, "_CHUNK_ELEMS", limit)
    parts = reference.evaluate(problem, dout, dlse)
    for name in ("out", "lse", "dq", "dk", "dv"):
        torch.testing.assert_close(parts.named(name), whole.named(name))


def test_eager_is_the_same_function_in_another_dtype():
    q, k, v, dout, _ = inputs(seqlen_q=33, seqlen_k=65, dtype=torch.float16)
    problem = reference.Problem(q, k, v)
    ref = reference.evaluate(problem, dout, dtype=torch.float64)
    eager = reference.evaluate(problem, dout)
    assert (
        eager.out.dtype == eager.named("dq").dtype == torch.float16
        and eager.lse.dtype == torch.float32
    )
    bound = error_rule.error_bound(ref.out, eager.out, torch.float16)
    assert 1e-5 < bound < 1e-2
    assert error_rule.compare(eager.out, ref.out, eager.out).ok


def test_dropout_is_the_mask_of_the_rng_state():
    q, k, _, _, _ = inputs()
    dropout = dropout_for(0.5)
    assert torch.equal(kept_by(dropout, q, k), keep_mask(5, 8, 2, 4, 5, 7, 128, 8))
    assert dropout.scale == 2.0
