"""Speed of the cpu forward against PyTorch's own CPU attention, alternating in one process.

    python benchmarks/cpu_forward.py                                                 prints a table
    python benchmarks/cpu_forward.py --out benchmarks/results/cpu_forward.json       records it too

Both get the same threads (torch.get_num_threads()) and the layout they like best: ours (batch,
seqlen, heads, head_dim), torch's (batch, heads, seqlen, head_dim), contiguous. The median of the
rounds counts. The bar is half of torch's speed at batch 1, seqlen 2048, 16 heads, d 64, fp32.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import flashgen

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BATCH, SEQLEN, HEADS = 1, 2048, 16
KEYS = ("d64-fp32", "d64-fp32-causal", "d128-fp32-causal", "d64-bf16")
BAR = 0.5  # of torch's speed, for the d64-fp32 keys


def measure(key: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds of both, alternating, and their ratio (above 1: ours is faster)."""
    kernel = flashgen.load(key, device="cpu")
    variant = kernel.variant
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(BATCH, SEQLEN, HEADS, variant.head_dim, generator=generator).to(
            DTYPES[variant.dtype]
        )
        for _ in range(3)
    )
    transposed = [t.transpose(1, 2).contiguous() for t in (q, k, v)]

    def ours() -> torch.Tensor:
        return kernel.forward(q, k, v).out

    def theirs() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            *transposed, is_causal=variant.causal
        )

    difference = (ours() - theirs().transpose(1, 2)).abs().max().item()
    times: dict[Callable[[], torch.Tensor], list[float]] = {ours: [], theirs: []}
    for _ in range(rounds):
        for function, seconds in times.items():
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    ours_ms, theirs_ms = (statistics.median(s) * 1e3 for s in times.values())
    flops = 4 * BATCH * HEADS * SEQLEN**2 * variant.head_dim / (2 if variant.causal else 1)
    return {
        "key": key,
        "ours_ms": ours_ms,
        "torch_ms": theirs_ms,
        "ratio": theirs_ms / ours_ms,
        "gflops": flops / ours_ms / 1e6,
        "max_difference": difference,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keys", nargs="*", default=KEYS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="file for the record")
    options = parser.parse_args()
    rows = [measure(key, options.rounds) for key in options.keys]
    report = {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "shape": {"batch": BATCH, "seqlen": SEQLEN, "heads": HEADS},
        "rows": rows,
    }
    print(f"{report['processor']}, {report['threads']} threads, torch {torch.__version__}")
    for row in rows:
        print(
            f"{row['key']:18} ours {row['ours_ms']:7.1f} ms ({row['gflops']:4.0f} GFLOP/s)  "
            f"torch {row['torch_ms']:7.1f} ms  ratio {row['ratio']:.2f}"
        )
    if options.out:
        options.out.write_text(json.dumps(report, indent=2) + "\n")
    slow = [row["key"] for row in rows if row["key"] in KEYS[:2] and row["ratio"] < BAR]
    if slow:
        print(f"below {BAR} of torch's speed: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else ())
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
