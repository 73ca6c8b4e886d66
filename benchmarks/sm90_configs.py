"""Family sm90's configurations of one forward beside each other, and PyTorch's cuDNN backend.

python benchmarks/sm90_configs.py --out benchmarks/results/sm90_configs_h200.json
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import date
from functools import partial
from pathlib import Path

import torch
from sm90_speed import HIDDEN, INPUT_SETS, TOKENS, sdpa_cudnn  # beside this file
from timing import METHOD, measure, rotate

import flashgen
from flashgen.generator.arch import TARGETS
from flashgen.generator.variant import parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.loader import load_pass

CONFIGS: dict[int, dict[str, dict[str, int | bool]]] = {
    64: {
        "192x128s3": {"tile_m": 192, "tile_n": 128, "num_stages": 3, "hold_q": False},
        "128x128q": {"tile_m": 128, "tile_n": 128, "num_stages": 2, "hold_q": True},
    },
    128: {
        "128x128q": {"tile_m": 128, "tile_n": 128, "num_stages": 2, "hold_q": True},
        "192x80s3": {"tile_m": 192, "tile_n": 80, "num_stages": 3, "hold_q": False},
        "192x80s2": {"tile_m": 192, "tile_n": 80, "num_stages": 2, "hold_q": False},
    },
}


def requests_of(head_dim: int, causal: bool) -> dict[str, BuildRequest]:
    """A build of each configuration, by name."""
    variant = parse_key(f"d{head_dim}-bf16" + "-causal" * causal)
    target = TARGETS["sm90"]
    return {
        name: BuildRequest(variant, "forward", target, None, tuple(pins.items()))
        for name, pins in CONFIGS[head_dim].items()
    }


def cell(head_dim: int, causal: bool, seqlen: int, rounds: int) -> dict[str, object]:
    """TFLOP/s of each configuration and of cuDNN for one shape."""
    requests = requests_of(head_dim, causal)
    build(list(requests.values()))
    shape = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    calls: dict[str, list[partial[object]]] = {name: [] for name in (*requests, "cudnn")}
    for seed in range(INPUT_SETS):
        torch.manual_seed(seed)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out, lse = torch.empty_like(q), q.new_empty(shape[0], shape[2], seqlen, dtype=torch.float32)
        peer = partial(sdpa_cudnn, tuple(x.transpose(1, 2) for x in (q, k, v)), causal)
        calls["cudnn"].append(peer)
        for name, request in requests.items():
            compiled = load_pass(request, device=q.device)
            size = compiled.workspace(shape[0], shape[2], shape[2], seqlen, seqlen)
            workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
            call = partial(compiled.function, out, lse, q, k, v, None, workspace, head_dim**-0.5, 0)
            call()
            error = (peer().transpose(1, 2).float() - out.float()).abs().max().item()
            assert error < 0.05, f"{request} {name}: differs from cuDNN by {error}"
            calls[name].append(call)
    flops = 4 * shape[0] * shape[2] * seqlen * seqlen * head_dim * (0.5 if causal else 1.0)
    ms = measure({name: rotate(those) for name, those in calls.items()}, rounds)
    speeds = {name: round(flops / t / 1e9, 1) for name, t in ms.items()}
    found = {"head_dim": head_dim, "causal": causal, "seqlen": seqlen, "tflops": speeds}
    print(found, flush=True)
    return found


def main() -> None:
    """Measure, print and, with --out, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seqlens", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", default="", help="recorded in the JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.exit("sm90_configs: expected a CUDA device of compute capability 9.0, found none.")
    cells = [
        cell(head_dim, causal, seqlen, args.rounds)
        for head_dim in CONFIGS
        for causal in (False, True)
        for seqlen in args.seqlens
    ]
    record = {
        "benchmark": "sm90_configs",
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
        "cells": cells,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
