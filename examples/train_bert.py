"""Trains a BERT-shaped model, bidirectional and on padded rows, by three attentions.

Bytes are hidden, and are to be guessed. Rows have lengths of their own; what lies behind them is
padding, which attention is told by a mask of keys. Prints and writes what train_gpt2.py does. On a
GPU:

    python examples/train_bert.py --seqlen 4096 --batch 8 --steps 100 --out runs/bert
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch.nn import functional
from training import Attend, Batch, Call, Example, explicit, main, rows_of

import flashgen

HIDDEN, PADDING, IGNORED = 256, 257, -100  # tokens behind the bytes; a target that counts for none


def eager(call: Call) -> torch.Tensor:
    """Attention by explicit operations."""
    assert call.mask is not None
    return explicit(call, ~call.mask)


def masked(attend: Callable[..., torch.Tensor]) -> Attend:
    """Attention by a function of PyTorch's signature; flashgen's skips tiles of padding."""
    return lambda call: attend(*call.heads_first(), call.mask, call.dropout_p).transpose(1, 2)


def batch(text: torch.Tensor, options: argparse.Namespace, generator: torch.Generator) -> Batch:
    """Rows of a quarter to all of the length, with 15 of 100 bytes hidden."""
    shape = (options.batch, options.seqlen)
    rows = rows_of(text, *shape, generator)
    lengths = torch.randint(options.seqlen // 4, options.seqlen + 1, shape[:1], generator=generator)
    real = torch.arange(options.seqlen) < lengths[:, None]
    hidden = (torch.rand(shape, generator=generator) < 0.15) & real
    ids = rows.masked_fill(hidden, HIDDEN).masked_fill(~real, PADDING)
    targets = rows.masked_fill(~hidden, IGNORED)
    return Batch(ids, targets, int((lengths**2).sum()), real[:, None, None])


EXAMPLE = Example(
    "train_bert",
    {
        "eager": eager,
        "sdpa": masked(functional.scaled_dot_product_attention),
        "flashgen": masked(flashgen.scaled_dot_product_attention),
    },
    batch,
    {  # the vocabulary is BERT's, padded; bytes and two more use the first 258
        "layers": 12, "heads": 12, "width": 768, "vocabulary": 30528, "seqlen": 512, "batch": 32,
        "steps": 500, "dropout": 0.1, "lr": 3e-4, "warmup": 50, "text_bytes": 5_000_000,
    },
    {
        "layers": 2, "heads": 2, "width": 32, "vocabulary": 258, "seqlen": 48, "batch": 8,
        "steps": 30, "lr": 3e-3, "warmup": 1, "text_bytes": 100_000,
    },
)  # fmt: skip

if __name__ == "__main__":
    main(EXAMPLE, __doc__.partition("\n")[0])
