"""Which elements a kernel's dropout keeps, seen in what comes out of each pass."""

from __future__ import annotations

import torch


def probe(rows, columns, begin, like):
    """(batch, rows, heads, columns): row begin + c has a one in column c; the others zeros."""
    batch, heads = like.shape[0], like.shape[2]
    eye = torch.zeros(rows, columns, dtype=like.dtype, device=like.device)
    count = min(columns, rows - begin)
    eye[begin : begin + count, :count] = torch.eye(count, dtype=like.dtype, device=like.device)
    return eye.view(1, rows, 1, columns).expand(batch, rows, heads, columns).contiguous()


def kept_by_forward(kernel, q, k, p, seed, offset):
    """bool (batch, heads, seqlen_q, seqlen_k): the elements that forward lets through."""
    width, seqlen_k = kernel.variant.head_dim_v, k.shape[1]
    parts = []
    for begin in range(0, seqlen_k, width):
        v = probe(seqlen_k, width, begin, k)
        out = kernel.forward(q, k, v, dropout_p=p, seed=seed, offset=offset).out
        parts.append((out != 0)[..., : seqlen_k - begin].permute(0, 2, 1, 3))
    return torch.cat(parts, 3)


def kept_by_backward(kernel, q, k, v, p, seed, offset):
    """The same, by what reaches dv."""
    width, seqlen_q = kernel.variant.head_dim_v, q.shape[1]
    out, lse, rng_state = kernel.forward(q, k, v, dropout_p=p, seed=seed, offset=offset)
    parts = []
    for begin in range(0, seqlen_q, width):
        dout = probe(seqlen_q, width, begin, q)
        grads = kernel.backward(dout, q, k, v, out, lse, dropout_p=p, rng_state=rng_state)
        parts.append((grads.dv != 0)[..., : seqlen_q - begin].permute(0, 2, 3, 1))
    return torch.cat(parts, 2)
