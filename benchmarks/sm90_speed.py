"""Family sm90's forward against PyTorch's cuDNN backend.

Alternates the two in one process, in random order with idle gaps, and takes medians:

    python benchmarks/sm90_speed.py --out benchmarks/results/sm90_speed_h200.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path

import torch
from timing import METHOD, measure, rotate  # beside this file
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashgen

TOKENS = 16_384
HIDDEN = 2_048
INPUT_SETS = 2


@dataclass(frozen=True)
class Cell:
    """One measured pair."""

    head_dim: int
    causal: bool
    seqlen: int
    flashgen_tflops: float
    cudnn_tflops: float
    ratio: float


def sdpa_cudnn(inputs: tuple[torch.Tensor, ...], causal: bool) -> torch.Tensor:
    """PyTorch's cuDNN backend, pinned: any other would be an error, not a row."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)


def forward(head_dim: int, causal: bool, seqlen: int, rounds: int) -> Cell:
    """One shape's cell; the two results are compared first."""
    kernel = flashgen.load(f"d{head_dim}-bf16" + "-causal" * causal)
    shape = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    ours, theirs = [], []
    for seed in range(INPUT_SETS):
        torch.manual_seed(seed)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        ours.append(partial(kernel.forward, q, k, v))
        inputs = tuple(x.transpose(1, 2) for x in (q, k, v))
        theirs.append(partial(sdpa_cudnn, inputs, causal))
        difference = theirs[-1]().transpose(1, 2).float() - ours[-1]().out.float()
        error = difference.abs().max().item()
        assert error < 0.05, f"{kernel.key}: differs from cuDNN by {error}"
    flops = 4 * shape[0] * shape[2] * seqlen * seqlen * head_dim * (0.5 if causal else 1.0)
    ms = measure({"ours": rotate(ours), "peer": rotate(theirs)}, rounds)
    speed = {who: flops / t / 1e9 for who, t in ms.items()}
    cell = Cell(
        head_dim,
        causal,
        seqlen,
        round(speed["ours"], 1),
        round(speed["peer"], 1),
        round(speed["ours"] / speed["peer"], 3),
    )
    print(cell, flush=True)
    return cell


def main() -> None:
    """Measure, print and, with --out, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument(
        "--seqlens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384]
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", default="", help="recorded in the JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.exit("sm90_speed: expected a CUDA device of compute capability 9.0, found none.")
    cells = [
        forward(head_dim, causal, seqlen, args.rounds)
        for head_dim in args.dims
        for causal in (False, True)
        for seqlen in args.seqlens
    ]
    record = {
        "benchmark": "sm90_speed",
        "date": date.today().isoformat(),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "versions": {
            "flashgen": flashgen.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
        "method": f"{METHOD} of "
        f"{args.rounds} rounds, {INPUT_SETS} input sets, {TOKENS} tokens, hidden {HIDDEN}",
        "geomean": round(math.exp(sum(math.log(c.ratio) for c in cells) / len(cells)), 3),
        "cells": [asdict(cell) for cell in cells],
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
