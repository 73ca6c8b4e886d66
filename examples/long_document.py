"""Trains on documents of 32k bytes: a sliding window, and activations computed again, and compares.

A query sees the last 1024 keys. flashgen takes the window as two numbers and skips what is outside;
PyTorch's attention takes a mask with an element for each pair, 1 GiB. Prints and writes what
train_gpt2.py does. On a GPU:

    python examples/long_document.py --steps 10 --out runs/long
"""

from __future__ import annotations

import argparse
from functools import lru_cache

import torch
from torch.nn import functional
from training import Batch, Call, Example, main, rows_of

from flashgen.flash_attn import flash_attn_func


def sdpa(call: Call) -> torch.Tensor:
    """Attention by the kernel that PyTorch prefers for the window as a mask."""
    seen = _window(call.q.shape[1], call.options.window, call.q.device)
    attend = functional.scaled_dot_product_attention
    return attend(*call.heads_first(), attn_mask=seen, dropout_p=call.dropout_p).transpose(1, 2)


@lru_cache(maxsize=1)
def _window(seqlen: int, window: int, device: torch.device) -> torch.Tensor:
    return torch.ones(seqlen, seqlen, dtype=torch.bool, device=device).tril_().triu_(1 - window)


def ours(call: Call) -> torch.Tensor:
    """Attention by flashgen: a query sees itself and window - 1 keys before."""
    out = flash_attn_func(
        call.q, call.k, call.v, call.dropout_p, window_size=(call.options.window - 1, 0)
    )
    assert isinstance(out, torch.Tensor)
    return out


def batch(text: torch.Tensor, options: argparse.Namespace, generator: torch.Generator) -> Batch:
    """Rows of text, whose every byte predicts the next."""
    rows = rows_of(text, options.batch, options.seqlen + 1, generator)
    window = min(options.window, options.seqlen)
    pairs = window * (window + 1) // 2 + (options.seqlen - window) * window
    return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), options.batch * pairs)


EXAMPLE = Example(
    "long_document",
    {"sdpa": sdpa, "flashgen": ours},
    batch,
    {
        "layers": 12, "heads": 12, "width": 768, "vocabulary": 256, "seqlen": 32768, "batch": 1,
        "steps": 100, "dropout": 0.1, "lr": 3e-4, "warmup": 50, "text_bytes": 5_000_000,
        "window": 1024,
    },
    {
        "layers": 2, "heads": 2, "width": 32, "seqlen": 256, "batch": 2, "steps": 20, "lr": 3e-3,
        "warmup": 1, "text_bytes": 100_000, "window": 16,
    },
    checkpointed=True,
)  # fmt: skip

if __name__ == "__main__":
    main(EXAMPLE, __doc__.partition("\n")[0])
