"""Scores that grow from tile to tile of a forward's walk, so that its output is rescaled.

Samples of the error rule don't do that where a maximum may be outgrown by 2^8 first: a kernel that
rescales nothing is right about them.
"""

from __future__ import annotations

import torch

SEQLEN_Q, SEQLEN_K = 130, 700
CASES = ((0.02, 1.0), (0.15, 1.0), (-0.15, 1.0), (1.0, 0.5), (0.02, -0.1), (0.1, 0.0))
"""(what a score grows by from a key to the one before, softmax_scale): slowly, fast, downward, by
more than the slack in each key, with a negative scale, with none."""
TOLERANCE = {torch.float16: 0.01, torch.bfloat16: 0.06}  # of values of about 4


def inputs(head_dim: int, dtype: torch.dtype, device: torch.device, growth: float):
    """q, k and v of one head."""
    generator = torch.Generator().manual_seed(3)

    def normal(rows: int) -> torch.Tensor:
        return torch.randn(1, rows, 1, head_dim, generator=generator)

    q, k, v = 0.1 * normal(SEQLEN_Q), 0.1 * normal(SEQLEN_K), normal(SEQLEN_K)
    q[..., 0] = 1
    k[..., 0] = growth * (SEQLEN_K - torch.arange(SEQLEN_K))[None, :, None]
    return [x.to(device, dtype) for x in (q, k, v)]


def errors(kernel, head_dim: int, dtype: torch.dtype, device: torch.device):
    """(case, greatest error of the output without a mask) of each case."""
    for growth, scale in CASES:
        q, k, v = inputs(head_dim, dtype, device, growth)
        out = kernel(q=q, k=k, v=v, softmax_scale=scale)
        scores = scale * q[0, :, 0].double() @ k[0, :, 0].double().T
        expected = scores.softmax(-1) @ v[0, :, 0].double()
        yield (growth, scale), (out[0, :, 0].double() - expected).abs().max().item()
