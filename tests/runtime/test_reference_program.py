"""The reference of variants with a program, against dense formulas written by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.generator.spec import load_specs
from flashgen.runtime import reference
from flashgen.runtime.philox import keep_mask
from flashgen.runtime.samples import Shape, random_inputs


def variant_of(text, head_dim=8):
    spec = f"head_dim: {head_dim}\ndtype: fp64\n{text}"
    return load_specs(spec, "test.yaml")[0].variants[0]


def softmax_of(scores, visible, v, sink=None):
    """(out, lse) of (b, h, i, j) scores, by exponentials."""
    weights = torch.where(visible, scores.exp(), torch.zeros_like(scores))
    total = weights.sum(-1)
    if sink is not None:
        total = total + sink.exp().view(1, -1, 1)
    lse = total.log()
    weights = weights / torch.where(total == 0, torch.ones_like(total), total)[..., None]
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse


def scores_of(q, k):
    group = q.shape[2] // k.shape[2]
    k = k.repeat_interleave(group, 2)
    return torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[3])


def judge(variant, shape, formula, dropout=None):
    """Results and every gradient of the reference equal those of ``formula``."""
    data = random_inputs(variant, shape, "cpu")
    problem = reference.Problem.of(variant, data.q, data.k, data.v, data.arguments, dropout=dropout)
    got = reference.evaluate(problem, data.dout, data.dlse)
    leaves = {"q": data.q, "k": data.k, "v": data.v}
    leaves |= {n: t for n, t in data.arguments.items() if isinstance(t, torch.Tensor)}
    leaves = {
        name: t.double().requires_grad_() if t.is_floating_point() else t
        for name, t in leaves.items()
    }
    numbers = {n: x for n, x in data.arguments.items() if n not in leaves}
    out, lse = formula(**leaves, **numbers)
    close = {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(got.out, out.detach(), **close)
    torch.testing.assert_close(got.lse, lse.detach(), **close)
    wanted = {name[1:]: grad for name, grad in got.gradients.items()}
    rows = lse.isfinite()
    loss = (out * data.dout).sum() + (lse[rows] * data.dlse[rows]).sum()
    found = torch.autograd.grad(loss, [leaves[name] for name in wanted])
    for name, grad in zip(wanted, found, strict=True):
        assert grad.any(), name
        torch.testing.assert_close(wanted[name], grad, **close, msg=lambda m, n=name: f"{n}: {m}")
    return got


def grid(q, k):
    return torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])


SHAPE = Shape(2, 4, 2, 9, 13)


def test_every_preset_at_once():
    variant = variant_of(
        "causal: true\nwindow: runtime\nsoftcap: runtime\nalibi: true\n"
        "sink: {per: head, grad: true}\n"
    )

    def formula(q, k, v, alibi_slopes, sink, window_left, window_right, softcap):
        i, j = grid(q, k)
        diagonal = i + k.shape[1] - q.shape[1]
        scores = softcap * torch.tanh(scores_of(q, k) / softcap)
        scores = scores - alibi_slopes[:, :, None, None] * (diagonal - j).abs()
        visible = (j <= diagonal) & (j >= diagonal - window_left) & (j <= diagonal + window_right)
        return softmax_of(scores, visible, v.repeat_interleave(2, 2), sink)

    judge(variant, SHAPE, formula)


def test_a_sink_alone_is_the_lse_of_a_row_without_keys():
    variant = variant_of("causal: true\nsink: {per: head, grad: true}\n")

    def formula(q, k, v, sink):
        i, j = grid(q, k)
        return softmax_of(scores_of(q, k), j <= i - 4, v.repeat_interleave(2, 2), sink)

    got = judge(variant, Shape(2, 4, 2, 9, 5), formula)
    assert got.lse[:, :, :4].isfinite().all() and not got.out[:, :4].any()


def test_captures_of_every_level():
    variant = variant_of(
        "captures:\n"
        "  slope: {dims: [num_heads], dtype: fp32, grad: true}\n"
        "  row: {dims: [batch, seqlen_q], dtype: fp32, grad: true}\n"
        "  column: {dims: [num_heads_kv, seqlen_k], dtype: fp32, grad: true}\n"
        "  bias: {dims: [seqlen_q, seqlen_k], dtype: fp32, grad: true}\n"
        "  scale: {dims: [], dtype: fp32, grad: true}\n"
        "  doc: {dims: [batch, seqlen_k], dtype: int32}\n"
        "mask: 'doc[b, kv_idx] % 2 == 0 or kv_idx == q_idx'\n"
        "score: 'scale * score * slope[h] + row[b, q_idx] * column[h_kv, kv_idx] "
        "+ bias[q_idx, kv_idx]'\n"
    )

    def formula(q, k, v, slope, row, column, bias, scale, doc):
        i, j = grid(q, k)
        scores = scale * scores_of(q, k) * slope.view(1, -1, 1, 1)
        scores = scores + row[:, None, :, None] * column.repeat_interleave(2, 0)[None, :, None, :]
        visible = (doc % 2 == 0)[:, None, None, :] | (i == j)
        return softmax_of(scores + bias, visible, v.repeat_interleave(2, 2))

    judge(variant, SHAPE, formula)


def test_r14_a_capture_read_twice_adds_up():
    variant = variant_of(
        "captures: {bias: {dims: [seqlen_k], dtype: fp32, grad: true}}\n"
        "score: score + bias[q_idx] - 0.5 * bias[kv_idx]\n"
    )

    def formula(q, k, v, bias):
        scores = scores_of(q, k) + bias[:, None] - 0.5 * bias
        return softmax_of(scores, torch.tensor(True), v.repeat_interleave(2, 2))

    judge(variant, SHAPE, formula)


def test_what_is_masked_has_no_derivative():
    variant = variant_of(
        "captures: {t: {dims: [seqlen_k], dtype: fp32, grad: true}}\n"
        "mask: kv_idx != 3\nscore: score + sqrt(t[kv_idx])\n"
    )
    data = random_inputs(variant, SHAPE, "cpu")
    data.arguments["t"][3] = -1.0  # a NaN
    problem = reference.Problem.of(variant, data.q, data.k, data.v, data.arguments)
    got = reference.evaluate(problem, data.dout, data.dlse)
    assert all(grad.isfinite().all() for grad in got.gradients.values())
    assert got.named("dt")[3] == 0 and not got.named("dk")[:, 3].any()


def test_a_block_mask_of_one_head_serves_all():
    variant = variant_of("block_mask: {q: 16, kv: 32}\n", head_dim=16)
    q, k, v = (torch.randn(2, n, 4, 16, dtype=torch.float64) for n in (37, 53, 53))
    blocks = torch.tensor([[True, False], [False, True], [False, False]]).view(1, 1, 3, 2)
    problem = reference.Problem.of(variant, q, k, v, {"block_mask": blocks})
    out, lse = reference.attention(problem)
    visible = blocks.repeat_interleave(16, 2).repeat_interleave(32, 3)[:, :, :37, :53]
    expected = softmax_of(scores_of(q, k), visible, v)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(lse, expected[1])


PACKED = (
    "layout: varlen\ncausal: true\nsink: {per: head, grad: true}\n"
    "captures:\n"
    "  s: {dims: [batch], dtype: fp32, grad: true}\n"
    "  row: {dims: [total_q], dtype: fp32, grad: true}\n"
    "  doc: {dims: [total_k], dtype: int32}\n"
    "mask: doc[kv_idx] < 3\n"
    "score: score * s[b] + row[q_idx] * kv_idx\n"
)


@pytest.mark.parametrize("limit", [1 << 24, 100])
def test_packed_sequences_are_calls_of_their_own(monkeypatch, limit):
    monkeypatch.setattr(reference, "_CHUNK_ELEMS", limit)

    def formula(q, k, v, cu_seqlens_q, cu_seqlens_k, sink, s, row, doc):
        outs, stats = [], []
        for b in range(len(cu_seqlens_q) - 1):
            queries = slice(int(cu_seqlens_q[b]), int(cu_seqlens_q[b + 1]))
            keys = slice(int(cu_seqlens_k[b]), int(cu_seqlens_k[b + 1]))
            parts = q[None, queries], k[None, keys], v[None, keys].repeat_interleave(2, 2)
            i, j = grid(*parts[:2])
            scores = scores_of(*parts[:2]) * s[b] + row[queries, None] * j
            visible = (j <= i + len(j) - len(i)) & (doc[keys] < 3)
            out, lse = softmax_of(scores, visible, parts[2], sink)
            outs.append(out[0])
            stats.append(lse[0])
        tail = len(q) - int(cu_seqlens_q[-1])
        outs.append(q.new_zeros(tail, *q.shape[1:]))
        stats.append(q.new_full((q.shape[1], tail), -math.inf))
        return torch.cat(outs), torch.cat(stats, 1)

    judge(variant_of(PACKED), Shape(3, 4, 2, 9, 13), formula)


def test_attention_of_packed_sequences_is_differentiable():
    variant = variant_of(PACKED)
    data = random_inputs(variant, Shape(2, 2, 1, 4, 5), "cpu")
    problem = reference.Problem.of(variant, data.q, data.k, data.v, data.arguments)
    got = reference.evaluate(problem, data.dout)
    q = data.q.requires_grad_()
    out, _ = reference.attention(reference.Problem.of(variant, q, data.k, data.v, data.arguments))
    torch.testing.assert_close(out, got.out)
    torch.testing.assert_close(torch.autograd.grad(out, q, data.dout)[0], got.named("dq"))


def test_packed_sequences_drop_by_their_number():
    variant = variant_of("layout: varlen\ndropout: true\n")
    lengths = torch.tensor([0, 3, 3, 8])
    q, k, v = (torch.randn(n, 2, 8, dtype=torch.float64) for n in (8, 8, 8))
    state, arguments = torch.tensor([5, 8]), {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    dropout = reference.Dropout(state, 100, 8)
    problem = reference.Problem.of(variant, q, k, v, arguments, dropout=dropout)
    out, _ = reference.attention(problem)
    kept = keep_mask(5, 8, 3, 2, 5, 5, 100)[2:]
    weights = torch.softmax(scores_of(q[None, 3:], k[None, 3:]), -1) * kept * dropout.scale
    expected = torch.einsum("bhij,bjhd->bihd", weights, v[None, 3:])
    torch.testing.assert_close(out[3:], expected[0])
