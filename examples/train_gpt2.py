"""Trains a GPT-2-shaped model by eager attention, by PyTorch's and by flashgen, and compares.

Prints the time of a step, tokens/s, TFLOP/s and peak memory of each; writes them as JSON, and the
loss curves as one SVG. On a GPU:

    python examples/train_gpt2.py --steps 500 --out runs/1024
    python examples/train_gpt2.py --seqlen 4096 --batch 2 --steps 25 --out runs/4096
"""

from __future__ import annotations

import argparse
from functools import lru_cache

import torch
from torch.nn import functional
from training import Batch, Call, Example, explicit, main, rows_of

import flashgen


def eager(call: Call) -> torch.Tensor:
    """Attention by explicit operations."""
    return explicit(call, _future(call.q.shape[1], call.q.device))


@lru_cache(maxsize=1)
def _future(seqlen: int, device: torch.device) -> torch.Tensor:
    return torch.ones(seqlen, seqlen, dtype=torch.bool, device=device).triu(1)


def sdpa(call: Call) -> torch.Tensor:
    """Attention by the kernel that PyTorch prefers."""
    attend = functional.scaled_dot_product_attention
    return attend(*call.heads_first(), dropout_p=call.dropout_p, is_causal=True).transpose(1, 2)


def ours(call: Call) -> torch.Tensor:
    """Attention by flashgen."""
    out = flashgen.attention(call.q, call.k, call.v, causal=True, dropout_p=call.dropout_p)
    assert isinstance(out, torch.Tensor)
    return out


def batch(text: torch.Tensor, options: argparse.Namespace, generator: torch.Generator) -> Batch:
    """Rows of text, whose every byte predicts the next."""
    rows = rows_of(text, options.batch, options.seqlen + 1, generator)
    pairs = options.batch * options.seqlen * (options.seqlen + 1) // 2
    return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), pairs)


EXAMPLE = Example(
    "train_gpt2",
    {"eager": eager, "sdpa": sdpa, "flashgen": ours},
    batch,
    {  # the vocabulary is GPT-2's, padded; bytes use the first 256
        "layers": 12, "heads": 12, "width": 768, "vocabulary": 50304, "seqlen": 1024, "batch": 8,
        "steps": 500, "dropout": 0.1, "lr": 3e-4, "warmup": 50, "text_bytes": 5_000_000,
    },
    {
        "layers": 2, "heads": 2, "width": 32, "vocabulary": 256, "seqlen": 48, "batch": 4,
        "steps": 30, "lr": 3e-3, "warmup": 1, "text_bytes": 100_000,
    },
)  # fmt: skip

if __name__ == "__main__":
    main(EXAMPLE, __doc__.partition("\n")[0])
