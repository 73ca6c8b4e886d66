"""Cells + contenders -> a Record: of speed, of peak memory, or of the host's time."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ...generator.errors import ArgumentError
from . import record
from .cells import Cell
from .contest import Contest, prepare
from .meter import Meter
from .peers import Peer
from .record import CellRecord, Kind, Measurement, Note, Record
from .timing import Samples, measure

HOST_CALLS = 200  # between two waits: fewer than a launch queue holds
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is made.

    Attributes:
        kind: what is measured.
        device: where.
        passes: of `cells.PASSES`.
        rounds: samples of each contender.
        sustained: without idle gaps.
        command: for the record.
        commit: for the record; None asks git.
    """

    kind: Kind
    device: torch.device
    passes: tuple[str, ...]
    rounds: int
    sustained: bool = False
    command: str = ""
    commit: str | None = None

    @property
    def method(self) -> str:
        """How it is measured, in words."""
        if self.kind == "memory":
            return "a forward and its backward through autograd, bytes allocated over the inputs"
        if self.kind == "host":
            return (
                f"median of {self.rounds} rounds of {HOST_CALLS} calls without a wait, contenders "
                "in random order each round, problems that take the device less time than the host"
            )
        rounds = f"median of {self.rounds} rounds, contenders in random order each round"
        if self.device.type != "cuda":
            return f"bursts of 10 ms; {rounds}"
        gaps = "without gaps" if self.sustained else "with 10 ms idle before each"
        return (
            f"bursts of 10 ms {gaps}, CUDA events, calls queued ahead where the host is slower "
            f"than the device; {rounds}; 2 input sets"
        )


def run(
    cells: Sequence[Cell],
    contenders: Sequence[Peer],
    settings: Settings,
    absent: Sequence[Note] = (),
    progress: Callable[[Record], None] | None = None,
) -> Record:
    """The record of ``cells``, each contender checked against the first before it is timed.

    Args:
        cells: what to measure.
        contenders: who takes part; the first is ours.
        settings: how.
        absent: contenders that were asked for and aren't there.
        progress: called after each cell with the record so far.

    Raises:
        FlashgenError: when ours can't be built or run.
        ArgumentError: for ``memory`` on the CPU, whose allocations torch doesn't count.
    """
    if settings.kind == "memory" and settings.device.type != "cuda":
        raise ArgumentError(
            f"bench: --memory: expected a CUDA device, got {settings.device}. torch counts "
            "allocations there alone."
        )
    commit = record.commit_of_checkout() if settings.commit is None else settings.commit
    found = Record(
        kind=settings.kind,
        date=record.now(),
        commit=commit,
        command=settings.command,
        method=settings.method,
        device=record.describe_device(settings.device),
        versions=record.describe_versions(settings.device),
        absent=tuple(absent),
        cells=(),
    )
    for cell in cells:
        found = found.with_cell(_run_cell(cell, contenders, settings))
        if progress is not None:
            progress(found)
    return found


def _run_cell(cell: Cell, contenders: Sequence[Peer], settings: Settings) -> CellRecord:
    backward = settings.kind == "memory" or settings.passes != ("forward",)
    contest = prepare(cell, contenders, settings.device, backward)
    steps = {"speed": _speed, "memory": _memory, "host": _host}
    measurements = list(steps[settings.kind](contest, settings))
    return contest.record(measurements)


def _speed(contest: Contest, settings: Settings) -> Iterator[Measurement]:
    meter = Meter(settings.device)
    for pass_name in settings.passes:
        timed = contest.timed(pass_name)
        samples = measure(
            timed, settings.rounds, settings.device, sustained=settings.sustained, meter=meter
        )
        flops = contest.cell.flops(pass_name)
        for name, found in samples.items():
            yield _measurement(name, pass_name, found, flops, meter)


def _measurement(
    name: str, pass_name: str, samples: Samples, flops: float | None, meter: Meter
) -> Measurement:
    ms = samples.median_ms
    tflops = None if flops is None else flops / ms / 1e9
    clocks = [r.sm_clock_mhz for r in samples.readings if r.sm_clock_mhz]
    powers = [r.power_w for r in samples.readings if r.power_w]
    clock = statistics.median(clocks) if clocks else None
    peak = None if clock is None else meter.peak_flops(clock)
    low, high = samples.quartiles_ms
    return Measurement(
        contender=name,
        pass_name=pass_name,
        median_ms=_short(ms),
        quartiles_ms=(_short(low), _short(high)),
        range_ms=(_short(min(samples.ms)), _short(max(samples.ms))),
        tflops=None if tflops is None else float(f"{tflops:.4g}"),
        sm_clock_mhz=clock,
        peak_share=None if tflops is None or peak is None else round(tflops * 1e12 / peak, 3),
        power_w=round(statistics.median(powers), 1) if powers else None,
    )


def _short(ms: float) -> float:
    return float(f"{ms:.{_DIGITS}g}")


def _memory(contest: Contest, settings: Settings) -> Iterator[Measurement]:
    device = settings.device
    for name in [name for name in contest.ready if name not in contest.forward_only]:
        with contest.guard(name, backward=True):
            calls = contest.ready[name][0]
            with calls.attend.context():
                calls.step()  # workspaces that a library keeps are there before
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                calls.step()
                torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device) - before
            yield Measurement(contender=name, pass_name="step", peak_bytes=peak)


def _host(contest: Contest, settings: Settings) -> Iterator[Measurement]:
    for pass_name in settings.passes:
        timed = contest.timed(pass_name)
        samples: dict[str, list[float]] = {name: [] for name in timed}
        for round_index in range(settings.rounds + 1):
            order = list(timed)
            random.shuffle(order)
            for name in order:
                _wait(settings.device)
                with timed[name].context():
                    start = time.perf_counter()
                    for _ in range(HOST_CALLS):
                        timed[name].call()
                    seconds = time.perf_counter() - start
                if round_index:  # the first warms up
                    samples[name].append(seconds * 1e3 / HOST_CALLS)
        _wait(settings.device)
        for name, ms in samples.items():
            yield _measurement(name, pass_name, Samples(ms), None, Meter(settings.device))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
