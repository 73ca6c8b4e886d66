"""A dropout call's arguments -> S_dmask, the weights with their dropped ones marked; for tests.

Computed in torch, of size seqlen_q x seqlen_k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..generator.variant import Variant
from ..runtime import philox


@torch.no_grad()
def dropped_weights(
    variant: Variant,
    q: torch.Tensor,
    k: torch.Tensor,
    softmax_scale: float | None,
    dropout_p: float,
    rng_state: torch.Tensor,
    given: Mapping[str, Any],
) -> torch.Tensor:
    """exp(score - its row's largest), negative where dropped, in q's dtype.

    Args:
        variant: of the call, with dropout.
        q: (batch, seqlen_q, num_heads, head_dim), or (total_q, num_heads, head_dim).
        k: (batch, seqlen_k, num_heads_kv, head_dim), or (total_k, num_heads_kv, head_dim).
        softmax_scale: default 1 / sqrt(head_dim).
        dropout_p: of the call.
        rng_state: (seed, offset) of the call.
        given: its keyword arguments.

    Returns:
        (batch, num_heads, seqlen_q, seqlen_k); packed: (sequences, num_heads, longest queries,
        longest keys), 0 beyond a sequence's ends.
    """
    sequences = _sequences(q, k, given)
    rows = max(len(one_q) for one_q, _ in sequences)
    columns = max(len(one_k) for _, one_k in sequences)
    num_heads = q.shape[-2]
    result = q.new_zeros(len(sequences), num_heads, rows, columns)
    threshold = philox.dropout_threshold(dropout_p, variant.dropout_bits)
    for b, (one_q, one_k) in enumerate(sequences):
        weights = _weights(variant, b, one_q, one_k, softmax_scale, given)
        heads = torch.arange(num_heads, device=q.device) + b * num_heads
        sizes = (len(one_q), len(one_k))
        seed, offset = rng_state.unbind()
        bits = variant.dropout_bits
        keep = philox.keep_heads(seed, offset, heads, *sizes, threshold, bits)
        result[b, :, : sizes[0], : sizes[1]] = torch.where(keep, weights, -weights)
    return result


def _sequences(
    q: torch.Tensor, k: torch.Tensor, given: Mapping[str, Any]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if "cu_seqlens_q" not in given:
        return list(zip(q, k, strict=True))
    ends_q, ends_k = (given[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
    spans = zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False)
    return [(q[a:b], k[c:d]) for a, b, c, d in spans]


def _weights(
    variant: Variant,
    b: int,
    q: torch.Tensor,
    k: torch.Tensor,
    softmax_scale: float | None,
    given: Mapping[str, Any],
) -> torch.Tensor:
    """exp(score - its row's largest) of one sequence, (num_heads, queries, keys)."""
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    place = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    shift = torch.arange(len(k), device=q.device) - place
    if "softcap" in given:
        scores = given["softcap"] * torch.tanh(scores / given["softcap"])
    if "alibi_slopes" in given:
        slopes = given["alibi_slopes"]
        slopes = slopes[b] if slopes.dim() == 2 else slopes
        scores = scores - slopes[:, None, None] * shift.abs()
    left = given.get("window_left")
    right = 0 if variant.causal else given.get("window_right")
    seen = torch.ones_like(shift, dtype=torch.bool)
    if left is not None:
        seen &= shift >= -left
    if right is not None:
        seen &= shift <= right
    scores = scores.masked_fill(~seen, -math.inf)
    largest = scores.amax(-1, keepdim=True) if len(k) else scores.new_zeros(1)
    return (scores - largest.nan_to_num(neginf=0.0)).exp()
