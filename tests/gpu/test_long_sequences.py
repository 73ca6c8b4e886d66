"""A million tokens: no memory that grows with seqlen squared, and right where it can be checked."""

from __future__ import annotations

import math

import pytest
import torch

from flashgen.generator.spec import load_specs
from flashgen.runtime.kernel import Kernel

pytestmark = [pytest.mark.gpu]
SEQLEN, WINDOW, HEAD_DIM, ROW = 1_000_000, 4096, 64, 777_777
LIMIT_BYTES = 24 * SEQLEN * HEAD_DIM  # out, the gradients, and an fp32 dq with its padding
HEAD = f"head_dim: {HEAD_DIM}\ndtype: bf16\n"
VARIANTS = {
    "window": (
        f"window: {{left: {WINDOW}, right: 0}}\n",
        lambda i, j: (j <= i) & (j >= i - WINDOW),
    ),
    "tile test": (
        'mask: "abs(q_idx // 64 - kv_idx // 64) <= 32"\n',
        lambda i, j: (i // 64 - j // 64).abs() <= 32,
    ),
    "documents": (
        "captures: {doc: {dims: [seqlen_k], dtype: int32}}\n"
        f'mask: "0 <= q_idx - kv_idx <= {WINDOW} and doc[q_idx] == doc[kv_idx]"\n',
        lambda i, j: (j <= i) & (j >= i - WINDOW) & (j // 30_000 == i // 30_000),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_million_tokens(device, name):
    text, visible = VARIANTS[name]
    kernel = Kernel(load_specs(HEAD + text, "test.yaml")[0].variants[0], device)
    positions = torch.arange(SEQLEN, device=device)
    captures = {"doc": (positions // 30_000).int()} if name == "documents" else {}
    shape = (1, SEQLEN, 1, HEAD_DIM)
    q, k, v, dout = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(4))
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    out, lse, _ = kernel.forward(q, k, v, **captures)
    dq, dk, dv, _ = kernel.backward(dout, q, k, v, out, lse, **captures)
    assert torch.cuda.max_memory_allocated(device) - before < LIMIT_BYTES
    keys = visible(torch.tensor(ROW, device=device), positions)
    scores = (k[0, :, 0][keys].double() @ q[0, ROW, 0].double()) / math.sqrt(HEAD_DIM)
    p = torch.softmax(scores, 0)
    expected = p @ v[0, :, 0][keys].double()
    assert (out[0, ROW, 0].double() - expected).abs().max() < 1e-2 * expected.abs().max()
    assert (lse[0, 0, ROW] - scores.logsumexp(0)).abs() < 1e-4
    dp = v[0, :, 0][keys].double() @ dout[0, ROW, 0].double()
    ds = p * (dp - (p * dp).sum())
    expected = (ds @ k[0, :, 0][keys].double()) / math.sqrt(HEAD_DIM)
    assert (dq[0, ROW, 0].double() - expected).abs().max() < 2e-2 * expected.abs().max()
    assert torch.isfinite(dk).all() and torch.isfinite(dv).all()
