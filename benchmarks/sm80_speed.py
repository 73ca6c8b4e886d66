"""Family sm80 against PyTorch's flash backend (FlashAttention-2), forward and backward.

Alternates the two in one process, in random order with idle gaps, and takes medians:

    python benchmarks/sm80_speed.py --out benchmarks/results/sm80_h200.json
"""

from __future__ import annotations

import argparse
import json
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

    pass_name: str
    head_dim: int
    causal: bool
    seqlen: int
    dropout_p: float
    flashgen_tflops: float
    flash_tflops: float
    ratio: float


def sdpa_flash(inputs: tuple[torch.Tensor, ...], causal: bool, dropout_p: float) -> torch.Tensor:
    """PyTorch's flash backend, pinned: any other would be an error, not a row."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(
            *inputs, is_causal=causal, dropout_p=dropout_p
        )


def forward_and_backward(
    name: str, head_dim: int, causal: bool, seqlen: int, dropout_p: float, rounds: int
) -> list[Cell]:
    """The two cells of one shape."""
    kernel = flashgen.load(name)
    shape = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    ours_fwd, ours_bwd, peer_fwd, peer_bwd = [], [], [], []
    for seed in range(INPUT_SETS):
        torch.manual_seed(seed)
        q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        options = {"dropout_p": dropout_p, "seed": 1} if dropout_p else {}
        out, lse, rng_state = kernel.forward(q, k, v, **options)
        ours_fwd.append(partial(kernel.forward, q, k, v, **options))
        back = {"dropout_p": dropout_p, "rng_state": rng_state} if dropout_p else {}
        ours_bwd.append(partial(kernel.backward, dout, q, k, v, out, lse, **back))

        inputs = tuple(x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
        peer_out = sdpa_flash(inputs, causal, dropout_p)
        if not dropout_p:
            difference = (peer_out.transpose(1, 2).float() - out.float()).abs().max().item()
            assert difference < 0.05, f"{name}: differs from SDPA by {difference}"
        peer_fwd.append(torch.no_grad()(partial(sdpa_flash, inputs, causal, dropout_p)))
        peer_bwd.append(
            partial(torch.autograd.grad, peer_out, inputs, dout.transpose(1, 2), retain_graph=True)
        )
    flops = 4 * shape[0] * shape[2] * seqlen * seqlen * head_dim * (0.5 if causal else 1.0)
    cells = []
    for pass_name, ours, theirs, factor in (
        ("forward", ours_fwd, peer_fwd, 1.0),
        ("backward", ours_bwd, peer_bwd, 2.5),
    ):
        ms = measure({"ours": rotate(ours), "peer": rotate(theirs)}, rounds)
        speed = {who: flops * factor / t / 1e9 for who, t in ms.items()}
        cells.append(
            Cell(
                pass_name,
                head_dim,
                causal,
                seqlen,
                dropout_p,
                round(speed["ours"], 1),
                round(speed["peer"], 1),
                round(speed["ours"] / speed["peer"], 3),
            )
        )
        print(cells[-1], flush=True)
    return cells


def main() -> None:
    """Measure, print and, with --out, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--seqlens", type=int, nargs="+", default=[4096])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--commit", default="", help="recorded in the JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("sm80_speed: expected a CUDA device, found none.")
    cells = []
    for head_dim in args.dims:
        for causal in (False, True):
            for seqlen in args.seqlens:
                key = f"d{head_dim}-bf16" + "-causal" * causal + "-dropout" * (args.dropout > 0)
                cells += forward_and_backward(
                    key, head_dim, causal, seqlen, args.dropout, args.rounds
                )
    record = {
        "benchmark": "sm80_speed",
        "date": date.today().isoformat(),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "versions": {
            "flashgen": flashgen.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "method": f"{METHOD} of "
        f"{args.rounds} rounds, {INPUT_SETS} input sets, {TOKENS} tokens, hidden {HIDDEN}",
        "cells": [asdict(cell) for cell in cells],
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
