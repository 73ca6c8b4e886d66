"""How the GPU benchmarks time calls: bursts in random order, idle gaps between, medians."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import torch

Call = Callable[[], object]

BURST_S = 0.010  # work between idle gaps
GAP_S = 0.010
METHOD = "bursts of 10 ms in random order, 10 ms idle between, median"


def measure(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call.

    A fixed order without gaps ranks kernels wrongly: the clock falls as the GPU heats up.
    """
    repeats = {
        name: max(1, round(BURST_S * 1e3 / time_burst(call, 3))) for name, call in calls.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        order = list(calls)
        random.shuffle(order)
        for name in order:
            time.sleep(GAP_S)
            samples[name].append(time_burst(calls[name], repeats[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


def time_burst(call: Call, repeats: int) -> float:
    """Milliseconds a call, over ``repeats`` queued ones."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def rotate(calls: list[Call]) -> Call:
    """A call that takes the next input set each time."""
    state = {"next": 0}

    def call() -> object:
        state["next"] = (state["next"] + 1) % len(calls)
        return calls[state["next"]]()

    return call
