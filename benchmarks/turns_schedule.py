"""What waiting for turns costs family sm80's deterministic backward, in a simulation.

    python benchmarks/turns_schedule.py               prints a table
    python benchmarks/turns_schedule.py --out FILE    records it too

Thread blocks begin in the order of their tickets, wherever one ends. A step takes 1, more or less
by the jitter; a block may add to a tile of dQ once the block with the keys before its own has. What
counts is the time until all have ended, over that of blocks which never wait, one head after the
other.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

TOKENS, HIDDEN, HEAD_DIM = 16_384, 2_048, 128
TILE_M, TILE_N = 64, 128
BLOCKS_AT_ONCE = 132  # one on each multiprocessor of an H200
JITTER, LATENCY, ADDS_AT = 0.1, 0.2, 0.6  # of a step: its spread, a message's way, where it adds
ENDS = 0.4  # steps that a block's beginning takes, and its end


@dataclass(frozen=True)
class Order:
    """How blocks are dealt out: steps between neighbours of a head, and where walks begin."""

    spacing: int  # 0: one head after the other
    last_first: bool
    waits: bool = True


ORDERS = {
    "one head after the other": Order(0, True),
    "several heads, from the first query": Order(4, False),
    "several heads, from the last query": Order(4, True),
}


def tickets(heads: int, tiles_n: int, section: int) -> Iterator[tuple[int, int]]:
    """(head, tile of keys) of each block in the order in which they begin."""
    for first in range(0, heads, section):
        for tile in range(tiles_n):
            for head in range(first, min(first + section, heads)):
                yield head, tile


def simulate(seqlen: int, causal: bool, order: Order) -> float:
    """Steps until the last block has ended."""
    draw = random.Random(1)
    heads, tiles_m = TOKENS // seqlen * (HIDDEN // HEAD_DIM), seqlen // TILE_M
    wanted = order.spacing * BLOCKS_AT_ONCE / (tiles_m * (0.5 if causal else 1.0))
    section = math.ceil(heads / max(1, int(heads / wanted))) if order.spacing else 1
    free = [0.0] * BLOCKS_AT_ONCE
    added: dict[tuple[int, int], dict[int, float]] = {}
    end = 0.0
    for head, tile_n in tickets(heads, seqlen // TILE_N, section):
        now = heapq.heappop(free) + ENDS
        speed = 1 + 0.3 * JITTER * draw.uniform(-1, 1)
        walk = list(range(tile_n * TILE_N // TILE_M if causal else 0, tiles_m))
        before = added.pop((head, tile_n - 1), None)
        own = added[head, tile_n] = {}
        for tile_m in reversed(walk) if order.last_first else walk:
            step = speed * (1 + JITTER * draw.uniform(-1, 1))
            adds = now + ADDS_AT * step
            if order.waits and before is not None:
                adds = max(adds, before[tile_m] + LATENCY)
            now = own[tile_m] = adds + (1 - ADDS_AT) * step
        end = max(end, now + ENDS)
        heapq.heappush(free, now + ENDS)
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows = []
    for seqlen in (1024, 4096):
        for causal in (False, True):
            free = simulate(seqlen, causal, Order(0, True, waits=False))
            for name, order in ORDERS.items():
                cost = simulate(seqlen, causal, order) / free - 1
                rows.append({"seqlen": seqlen, "causal": causal, "order": name, "cost": cost})
                print(f"{seqlen:5} {'causal' if causal else 'full':6} {cost:6.1%}  {name}")
    if out is not None:
        orders = {name: asdict(order) for name, order in ORDERS.items()}
        record = {"benchmark": "turns_schedule", "simulated": True, "orders": orders, "rows": rows}
        out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
