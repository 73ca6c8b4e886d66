"""Layouts of family sm80's kernels against each other and PyTorch's flash backend.

The tables of docs/sm80.md; the layouts alternate in one process, in random order with idle gaps:

    python benchmarks/sm80_plans.py --out benchmarks/results/sm80_plans_h200.json
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
from sm80_speed import HIDDEN, INPUT_SETS, TOKENS, sdpa_flash  # beside this file
from timing import METHOD, Call, measure, rotate

import flashgen
from flashgen.generator.pins import Pin
from flashgen.generator.spec import Spec
from flashgen.generator.variant import parse_key
from flashgen.runtime.kernel import Kernel

SEQLENS = (1024, 4096)
BACKWARD_FIELDS = (
    *("tile_m", "num_warps", "key_atoms", "head_splits", "score_splits", "num_stages"),
    "min_blocks",
)
FORWARD_FIELDS = ("tile_m", "tile_n", "num_warps", "key_splits", "min_blocks")
BACKWARD = {
    64: ((64, 8, 1, 1, 1, 2, 1), (128, 8, 2, 2, 1, 2, 1), (64, 4, 2, 1, 2, 1, 2)),
    128: ((64, 8, 1, 1, 1, 2, 1), (64, 8, 2, 2, 1, 1, 1), (64, 8, 2, 2, 1, 2, 1)),
    256: ((64, 8, 2, 4, 1, 2, 1), (64, 8, 1, 2, 1, 1, 1), (64, 8, 1, 2, 1, 2, 1)),
}
FORWARD = {
    64: ((128, 64, 4, 1, 1), (128, 128, 4, 1, 1)),
    256: ((64, 64, 4, 1, 1), (128, 64, 8, 2, 1), (64, 64, 4, 2, 2)),
}


@dataclass(frozen=True)
class Row:
    """One measured layout; tflops of the peer where `pins` is None."""

    key: str
    pass_name: str
    seqlen: int
    pins: dict[str, int] | None
    tflops: float
    ratio: float


def pins_of(pass_name: str, values: tuple[int, ...]) -> dict[str, int]:
    """The fields of a layout by name."""
    if pass_name == "forward":
        return dict(zip(FORWARD_FIELDS, values, strict=True))
    pins = dict(zip(BACKWARD_FIELDS, values, strict=True))
    tile_n = 16 * pins["key_atoms"] * pins["num_warps"] // pins["head_splits"]
    return {**pins, "tile_n": tile_n}


def kernel_with(key: str, pass_name: str, pins: dict[str, int]) -> Kernel:
    """A kernel of family sm80 for this GPU, its plan pinned."""
    variant = parse_key(key)
    tuning = tuple(Pin("sm90", pass_name, field, value, 1, 1) for field, value in pins.items())
    spec = Spec("layout", "benchmarks", 1, (variant,), tuning=tuning)
    return Kernel(variant, torch.device("cuda"), spec=spec, family="sm80")


def calls_for(
    kernels: list[Kernel], pass_name: str, causal: bool, seqlen: int, head_dim: int
) -> dict[str, Call]:
    """What is timed, by the layout's number; the peer's is "peer"."""
    shape = (TOKENS // seqlen, seqlen, HIDDEN // head_dim, head_dim)
    sets: dict[str, list[Call]] = {str(i): [] for i in range(len(kernels))} | {"peer": []}
    for seed in range(INPUT_SETS):
        torch.manual_seed(seed)
        q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        for i, kernel in enumerate(kernels):
            out, lse, _ = kernel.forward(q, k, v)
            forward = partial(kernel.forward, q, k, v)
            backward = partial(kernel.backward, dout, q, k, v, out, lse)
            sets[str(i)].append(forward if pass_name == "forward" else backward)
        inputs = tuple(x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
        if pass_name == "forward":
            sets["peer"].append(torch.no_grad()(partial(sdpa_flash, inputs, causal, 0.0)))
        else:
            out = sdpa_flash(inputs, causal, 0.0)
            grads = partial(torch.autograd.grad, out, inputs, retain_graph=True)
            sets["peer"].append(partial(grads, grad_outputs=dout.transpose(1, 2)))
    return {name: rotate(calls) for name, calls in sets.items()}


def compare(
    head_dim: int, causal: bool, pass_name: str, layouts: tuple[tuple[int, ...], ...], rounds: int
) -> list[Row]:
    """The rows of one key and pass."""
    key = f"d{head_dim}-bf16" + "-causal" * causal
    pins = [pins_of(pass_name, values) for values in layouts]
    kernels = [kernel_with(key, pass_name, one) for one in pins]
    rows = []
    for seqlen in SEQLENS:
        ms = measure(calls_for(kernels, pass_name, causal, seqlen, head_dim), rounds)
        flops = 4 * TOKENS * seqlen * HIDDEN * (0.5 if causal else 1.0)
        flops *= 1.0 if pass_name == "forward" else 2.5
        for name, time_ms in ms.items():
            layout = None if name == "peer" else pins[int(name)]
            tflops, ratio = flops / time_ms / 1e9, ms["peer"] / time_ms
            rows.append(Row(key, pass_name, seqlen, layout, round(tflops, 1), round(ratio, 3)))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print and, with --out, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--commit", default="", help="recorded in the JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("sm80_plans: expected a CUDA device, found none.")
    rows = []
    for pass_name, layouts_of in (("forward", FORWARD), ("backward", BACKWARD)):
        for head_dim, layouts in layouts_of.items():
            for causal in (False, True):
                rows += compare(head_dim, causal, pass_name, layouts, args.rounds)
    record = {
        "benchmark": "sm80_plans",
        "date": date.today().isoformat(),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "versions": {"flashgen": flashgen.__version__, "torch": torch.__version__},
        "method": f"{METHOD} of {args.rounds} rounds, {INPUT_SETS} input sets",
        "rows": [asdict(row) for row in rows],
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
