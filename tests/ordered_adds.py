"""A call whose dQ shows in which order tiles of keys add to it, on emulated thread blocks."""

from __future__ import annotations

import torch
from emulated import EmulatedKernel

QUERIES, HEAD_DIM = 150, 16


def dq_of(kernel: EmulatedKernel, blocks: int, seed: int, heads: int, tile_n: int) -> torch.Tensor:
    """dQ of one and the same bf16 call over four tiles of keys and a bit, so many blocks at once.

    Args:
        kernel: of head size 16.
        blocks: emulated thread blocks that run at once.
        seed: of their schedule.
        heads: of q and of k.
        tile_n: keys of a thread block.
    """
    generator = torch.Generator().manual_seed(1)
    keys = 4 * tile_n + tile_n // 16
    q, k, v, dout = (
        torch.randn(1, length, heads, HEAD_DIM, generator=generator).to(torch.bfloat16)
        for length in (QUERIES, keys, keys, QUERIES)
    )
    # What two tiles of keys add is large and cancels, so the order shows.
    k[:, tile_n : 2 * tile_n], v[:, tile_n : 2 * tile_n] = k[:, :tile_n], -v[:, :tile_n]
    v[:, : 2 * tile_n] *= 2.0**18
    out, lse = torch.zeros_like(q), torch.full((1, heads, QUERIES), 6.0)  # as good as right ones
    kernel.run_at_once(blocks, seed)
    return kernel.backward(dout, q, k, v, out, lse).dq
