"""Calls -> Samples: bursts in random order with idle gaps, behind a queue that hides the host."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from .meter import Meter, Reading

Call = Callable[[], object]

BURST_S = 0.010  # work between two gaps
GAP_S = 0.010
MAX_REPEATS = 300
MAX_QUEUED = 50  # a launch queue holds about a thousand kernels, a step in eager mode is twenty
_TRIAL_CALLS = 3
_HOST_BOUND = 0.7  # host time over device time from which a queue is built up first
_QUEUE_MARGIN = 1.3
_SPIN_HZ = 2.0e9  # cycles of torch.cuda._sleep a second; a lower clock only waits longer


@dataclass(frozen=True, slots=True)
class Timed:
    """A call to time, and what is entered around a burst of it."""

    call: Call
    context: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(slots=True)
class Samples:
    """What the rounds gave for one call.

    Attributes:
        ms: milliseconds a call, one for each round.
        readings: of the meter while each burst ran.
    """

    ms: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.ms)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        """The lower and the upper quartile."""
        if len(self.ms) < 2:
            return self.ms[0], self.ms[0]
        low, _, high = statistics.quantiles(self.ms, n=4, method="inclusive")
        return low, high


def measure(
    calls: Mapping[str, Timed],
    rounds: int,
    device: torch.device,
    *,
    sustained: bool = False,
    meter: Meter | None = None,
) -> dict[str, Samples]:
    """Times of each call, all of them in every round, in a new random order.

    A fixed order without gaps ranks kernels wrongly: the clock falls as a GPU heats up.

    Args:
        calls: by name.
        rounds: samples of each.
        device: where they run; on the CPU there are no gaps.
        sustained: no gaps, so that the power limit rules.
        meter: read while each burst runs.
    """
    timer = _CudaTimer(device, meter) if device.type == "cuda" else _CpuTimer()
    bursts = {name: timer.plan(timed) for name, timed in calls.items()}
    gap_s = 0.0 if sustained or device.type != "cuda" else GAP_S
    samples = {name: Samples() for name in calls}
    for _ in range(rounds):
        order = list(calls)
        random.shuffle(order)
        for name in order:
            time.sleep(gap_s)
            ms, reading = timer.run(calls[name], bursts[name])
            samples[name].ms.append(ms)
            samples[name].readings.append(reading)
    return samples


def rotate(calls: Sequence[Call]) -> Call:
    """A call that takes the next input set each time."""
    state = {"next": 0}

    def call() -> object:
        state["next"] = (state["next"] + 1) % len(calls)
        return calls[state["next"]]()

    return call


@dataclass(frozen=True, slots=True)
class _Burst:
    """How often a call is repeated, and how long the device waits for the host first."""

    repeats: int
    lead_s: float = 0.0


class _CpuTimer:
    def plan(self, timed: Timed) -> _Burst:
        """Enough repeats for a burst, after one call that warms up."""
        self.run(timed, _Burst(1))
        ms, _ = self.run(timed, _Burst(1))
        return _Burst(_repeats(ms))

    def run(self, timed: Timed, burst: _Burst) -> tuple[float, Reading]:
        """(milliseconds a call, nothing)."""
        with timed.context():
            start = time.perf_counter()
            for _ in range(burst.repeats):
                timed.call()
            return (time.perf_counter() - start) * 1e3 / burst.repeats, Reading()


class _CudaTimer:
    def __init__(self, device: torch.device, meter: Meter | None) -> None:
        self._device = device
        self._meter = meter

    def plan(self, timed: Timed) -> _Burst:
        """Repeats for a burst; where the host is slower than the device, a lead for it."""
        trial = _Burst(_TRIAL_CALLS)
        self.run(timed, trial)
        with timed.context():
            start = time.perf_counter()
            for _ in range(_TRIAL_CALLS):
                timed.call()
            host_s = (time.perf_counter() - start) / _TRIAL_CALLS
        ms, _ = self.run(timed, trial)
        if host_s * 1e3 < _HOST_BOUND * ms:
            return _Burst(_repeats(ms))
        queued = _Burst(_TRIAL_CALLS, _TRIAL_CALLS * host_s * _QUEUE_MARGIN)
        ms, _ = self.run(timed, queued)  # the device's own time
        repeats = min(MAX_QUEUED, _repeats(ms))
        return _Burst(repeats, repeats * host_s * _QUEUE_MARGIN)

    def run(self, timed: Timed, burst: _Burst) -> tuple[float, Reading]:
        """(milliseconds a call, what the meter showed while they ran)."""
        reading = Reading()
        with torch.cuda.device(self._device), timed.context():
            begin, end = _event(), _event()
            if burst.lead_s:
                torch.cuda._sleep(int(burst.lead_s * _SPIN_HZ))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(burst.repeats):
                timed.call()
            end.record()
            if self._meter is not None:
                while not begin.query():
                    pass
                reading = self._meter.read()
            end.synchronize()
        return begin.elapsed_time(end) / burst.repeats, reading


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _repeats(ms: float) -> int:
    return min(MAX_REPEATS, max(1, round(BURST_S * 1e3 / max(ms, 1e-6))))
