"""What masks and scores cost on family sm80: each program against the plain kernel.

Per program: forward (and with --backward backward) milliseconds beside no mask and causal, in one
process, in random order with idle gaps. A mask's bar is its share of non-empty 128 x 128 tiles:

    python benchmarks/language_cost.py --out benchmarks/results/language_cost_h200.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

import flashgen
from flashgen.runtime.bench.timing import Call, Timed, measure, rotate

BATCH, HEADS, SEQLEN, HEAD_DIM = 2, 16, 8192, 128
INPUT_SETS = 2
TILE = 128
SPAN = 1024  # keys of a window, tokens of a document
SLACK = 1.3  # over causal's time a tile; issue of the variant language
FREE = 1.03  # a mask that hides nothing, over no mask


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        yaml: the fields of its spec besides head_dim and dtype.
        arguments: keyword arguments of the call, made on the device.
        tiles: share of 128 x 128 tiles that are not empty; None where no bar hangs on it.
        bar: what its forward may take; None for no bar.
    """

    yaml: str
    arguments: Callable[[], Mapping[str, Any]] = dict
    tiles: float | None = None
    bar: str | None = None


@dataclass(frozen=True)
class Row:
    """One measured program."""

    program: str
    yaml: str
    forward_ms: float
    forward_over_plain: float
    backward_ms: float | None = None
    backward_over_plain: float | None = None
    bar_ms: float | None = None
    within: bool | None = None


def documents() -> dict[str, torch.Tensor]:
    return {"doc": (torch.arange(SEQLEN, device="cuda") // SPAN).int()}


def share(visible: Callable[[int, int], bool]) -> float:
    """Share of tiles of which ``visible(q_tile, kv_tile)`` holds."""
    tiles = SEQLEN // TILE
    return sum(visible(q, k) for q in range(tiles) for k in range(tiles)) / tiles**2


SPAN_TILES = SPAN // TILE
CAUSAL_SHARE = share(lambda q, k: k <= q)
PROGRAMS = {
    "plain": Program(""),
    "causal": Program("causal: true"),
    "free": Program('mask: "q_idx // 3 - kv_idx // 5 < kv_len + q_len"', bar="free"),
    "free modulo": Program('mask: "(q_idx * 7 + kv_idx) % 5 < 5 + b"', bar="free"),
    "opaque": Program('mask: "(q_idx * 7 + kv_idx * 5) % 97 != 98 + b"'),
    "window": Program(
        f"causal: true\nwindow: {{left: {SPAN}, right: 0}}",
        tiles=share(lambda q, k: q - SPAN_TILES <= k <= q),
        bar="tiles",
    ),
    "window runtime": Program(
        "window: runtime",
        lambda: {"window_left": SPAN, "window_right": 0},
        tiles=share(lambda q, k: q - SPAN_TILES <= k <= q),
        bar="tiles",
    ),
    "document": Program(
        'captures: {doc: {dims: [seqlen_k], dtype: int32}}\nmask: "doc[q_idx] == doc[kv_idx]"',
        documents,
        tiles=share(lambda q, k: q // SPAN_TILES == k // SPAN_TILES),
        bar="tiles",
    ),
    "document causal": Program(
        "causal: true\n"
        'captures: {doc: {dims: [seqlen_k], dtype: int32}}\nmask: "doc[q_idx] == doc[kv_idx]"',
        documents,
    ),
    "softcap": Program("causal: true\nsoftcap: 50.0"),
    "alibi": Program(
        "causal: true\nalibi: true",
        lambda: {"alibi_slopes": torch.rand(HEADS, device="cuda") / 8},
    ),
    "sink": Program("causal: true\nsink: true", lambda: {"sink": torch.randn(HEADS).cuda()}),
}


def load(name: str, program: Program, folder: Path) -> Any:
    path = folder / f"{name.replace(' ', '-')}.yaml"
    path.write_text(f"head_dim: {HEAD_DIM}\ndtype: bf16\n{program.yaml}\n")
    return flashgen.load(str(path), family="sm80")


def calls_of(kernel: Any, program: Program, backward: bool) -> tuple[list[Any], list[Any]]:
    """Forward and backward calls on several input sets."""
    forwards, backwards = [], []
    for seed in range(INPUT_SETS):
        torch.manual_seed(seed)
        shape = (BATCH, SEQLEN, HEADS, HEAD_DIM)
        q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        arguments = program.arguments()
        forwards.append(partial(kernel.forward, q, k, v, **arguments))
        if backward:
            out, lse, _ = kernel.forward(q, k, v, **arguments)
            backwards.append(partial(kernel.backward, dout, q, k, v, out, lse, **arguments))
    return forwards, backwards


def medians(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call, all of them in a random order each round."""
    timed = {name: Timed(call) for name, call in calls.items()}
    samples = measure(timed, rounds, torch.device("cuda", torch.cuda.current_device()))
    return {name: found.median_ms for name, found in samples.items()}


def bar_of(program: Program, plain_ms: float, causal_ms: float) -> float | None:
    if program.bar == "free":
        return FREE * plain_ms
    if program.bar == "tiles":
        assert program.tiles is not None
        return SLACK * causal_ms * program.tiles / CAUSAL_SHARE
    return None


def run(names: list[str], rounds: int, backward: bool) -> list[Row]:
    """Measure every program beside plain and causal, all in one random order."""
    forwards, backwards = {}, {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        loads = [pool.submit(load, name, PROGRAMS[name], Path(folder)) for name in names]
        for name, loaded in zip(names, loads, strict=True):
            forward, back = calls_of(loaded.result(), PROGRAMS[name], backward)
            forwards[name] = rotate(forward)
            if backward:
                backwards[name] = rotate(back)
    ms = medians(forwards, rounds)
    back_ms = medians(backwards, rounds) if backward else {}
    rows = []
    for name in names:
        bar = bar_of(PROGRAMS[name], ms["plain"], ms["causal"])
        rows.append(
            Row(
                name,
                PROGRAMS[name].yaml,
                round(ms[name], 4),
                round(ms[name] / ms["plain"], 3),
                round(back_ms[name], 4) if backward else None,
                round(back_ms[name] / back_ms["plain"], 3) if backward else None,
                None if bar is None else round(bar, 4),
                None if bar is None else ms[name] <= bar,
            )
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print and, with --out, write JSON; exit 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=[*PROGRAMS], default=[*PROGRAMS])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--commit", default="", help="recorded in the JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("language_cost: expected a CUDA device, found none.")
    names = list(dict.fromkeys(["plain", "causal", *args.programs]))
    rows = run(names, args.rounds, args.backward)
    record = {
        "benchmark": "language_cost",
        "date": date.today().isoformat(),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "versions": {
            "flashgen": flashgen.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "method": f"bursts of 10 ms in random order, 10 ms idle between, median of {args.rounds} "
        f"rounds, {INPUT_SETS} input sets; batch {BATCH}, {HEADS} heads, seqlen {SEQLEN}, "
        f"head_dim {HEAD_DIM}, bf16, family sm80",
        "rows": [asdict(row) for row in rows],
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")
    if any(row.within is False for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
