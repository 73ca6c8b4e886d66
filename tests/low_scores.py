"""Scores so low that they overflow in base 2: whole tiles of them, and whole rows."""

from __future__ import annotations

import torch

SPEC = 'head_dim: 64\ndtype: bf16\nscore: "where(kv_idx < q_idx + 100, -3.0e38, score)"\n'
SEQLEN_Q, SEQLEN_K = 130, 200


def check(kernel, device):
    """Both passes: such scores hide their keys, and nothing is a NaN."""
    torch.manual_seed(0)
    q, dout, k, v = (
        torch.randn(1, length, 1, 64).to(device, torch.bfloat16)
        for length in (SEQLEN_Q, SEQLEN_Q, SEQLEN_K, SEQLEN_K)
    )
    out, lse, _ = kernel.forward(q, k, v)
    low = torch.arange(SEQLEN_K) < torch.arange(SEQLEN_Q)[:, None] + 100
    scores = q[0, :, 0].double() @ k[0, :, 0].double().T / 8
    shares = scores.masked_fill(low.to(device), -torch.inf).softmax(-1).nan_to_num(0)
    assert (out[0, :, 0] - shares @ v[0, :, 0].double()).abs().max() < 0.03
    assert torch.equal(lse[0, 0] == -torch.inf, low.all(1).to(device))
    grads = kernel.backward(dout, q, k, v, out, lse)
    assert all(x.isfinite().all() for x in (grads.dq, grads.dk, grads.dv))
