"""A variant's pass -> its Tuning: every candidate built, checked, then timed in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from ...generator.arch import target_for_family
from ...generator.errors import BenchError, CompileError, FlashgenError
from ...generator.pins import Pin
from ...generator.plan import candidates
from ...generator.spec import Spec
from ..bench.cells import Cell, Sizes
from ..bench.contest import INPUT_SETS, Calls
from ..bench.peers import Attend
from ..bench.record import now
from ..bench.timing import Timed, measure, rotate
from ..build import Progress, build, find
from ..catalogue import CatalogueEntry
from ..devices import target_of
from ..kernel import Kernel
from ..unit import BuildRequest
from ..verify import FORWARD_QUANTITIES, SHAPES, compare_call
from .store import Trial, Tuning, device_name, resume, save

DROPOUT_P = 0.1
LEAST_GAIN = 1.01  # what a plan must have over the shipped one: less is noise
_FINALISTS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """How candidates are compared.

    Attributes:
        device: where.
        seqlens: of the problems; the geometric mean over them decides.
        sizes: how their shapes follow.
        rounds: samples of each candidate and problem; the best counts.
        limit: the first candidates alone; None for all.
        family: whose plans; None for the one that serves the device best.
        jobs: the most compilers at once.
        force: forget what an earlier run has found.
    """

    device: torch.device
    seqlens: tuple[int, ...]
    sizes: Sizes
    rounds: int = 10
    limit: int | None = None
    family: str | None = None
    jobs: int | None = None
    force: bool = False

    @property
    def problem_sizes(self) -> str:
        """What is timed, in words."""
        return f"seqlen {', '.join(map(str, self.seqlens))}; {self.sizes}"


@dataclass(frozen=True, slots=True)
class TuneEvent:
    """One step: ``done`` of ``total``, and what it was."""

    done: int
    total: int
    text: str


Tell = Callable[[TuneEvent], None]


def tune(
    entry: CatalogueEntry,
    pass_name: str,
    settings: Settings,
    tell: Tell | None = None,
    progress: Progress | None = None,
) -> Tuning:
    """The finished comparison of a pass's candidates, written to the cache after every step.

    An interrupted run goes on where it was. A candidate that doesn't compile, can't run here or
    breaks the error rule can't win, and neither can one that is less than 1 % faster than the
    shipped plan in a last duel.

    Raises:
        FlashgenError: when the shipped plan itself can't be built or is wrong.
    """
    run = _Run(entry, pass_name, settings, tell or (lambda event: None))
    if run.tuning.winner is None:
        run.build(progress)
        run.check()
        run.time()
        run.decide()
    return run.tuning


class _Run:
    def __init__(
        self, entry: CatalogueEntry, pass_name: str, settings: Settings, tell: Tell
    ) -> None:
        self.entry = entry
        self.pass_name = pass_name
        self.settings = settings
        self.tell = tell
        self.target = target_for_family(target_of(settings.device), settings.family)
        self.done = 0
        plans = candidates(entry.variant, pass_name, self.target, family=settings.family)
        chosen = list(islice(plans, settings.limit))
        fresh = Tuning(
            device=device_name(settings.device),
            key=entry.key,
            pass_name=pass_name,
            target=self.target.name,
            family=chosen[0].family,
            problem_sizes=settings.problem_sizes,
            trials=[Trial(pins=tuple((n, getattr(c, n)) for n in c.pins)) for c in chosen],
        )
        self.tuning = fresh if settings.force else resume(fresh)

    def build(self, progress: Progress | None) -> None:
        """Compile every candidate; those that fail have a problem."""
        requests = [self._request(trial) for trial in self.tuning.trials]
        try:
            build(requests, jobs=self.settings.jobs, progress=progress)
        except CompileError:  # the others were compiled all the same
            for trial, request in zip(self.tuning.trials, requests, strict=True):
                if find(request) is None:
                    trial.problem = "doesn't compile"
        self._save()

    def check(self) -> None:
        """Hold each candidate to the error rule, on shapes that are no multiple of any tile."""
        for index, trial in enumerate(self.tuning.trials):
            if not trial.checked and not trial.problem:
                try:
                    trial.problem = self._fault(trial)
                except FlashgenError as error:  # such as instructions that this CPU lacks
                    trial.problem = str(error)
                trial.checked = True
                self._save()
            self._tell(f"checked {index + 1}")
        if self.tuning.trials[0].problem:
            raise BenchError(
                f"tune: {self.entry.key} {self.pass_name}: expected the shipped plan to work, got: "
                f"{self.tuning.trials[0].problem}"
            )

    def time(self) -> None:
        """Time what is right, one problem after the other, all candidates in every round."""
        for seqlen in self.settings.seqlens:
            racing = [i for i, _ in self._sound()]
            if any(str(seqlen) not in self.tuning.trials[i].ms for i in racing):
                for index, ms in self._race(seqlen, racing, self.settings.rounds).items():
                    self.tuning.trials[index].ms[str(seqlen)] = ms
                self._save()
            self._tell(f"timed seqlen {seqlen}")

    def decide(self) -> None:
        """Compare the best few with the shipped plan once more; only a clear winner counts.

        A plan's time is its best of both races: whatever disturbs a machine makes times longer.
        """
        ranked = sorted(self._sound(), key=lambda pair: _geomean(pair[1].ms.values()))
        finalists = sorted({0, *(index for index, _ in ranked[:_FINALISTS])})
        logs = dict.fromkeys(finalists, 0.0)
        for seqlen in self.settings.seqlens:
            for index, ms in self._race(seqlen, finalists, 2 * self.settings.rounds).items():
                best_ms = min(ms, self.tuning.trials[index].ms[str(seqlen)])
                logs[index] += math.log(best_ms) / len(self.settings.seqlens)
        duel = {index: math.exp(mean) for index, mean in logs.items()}
        best = min(duel, key=lambda index: duel[index])
        self.tuning.winner = best if duel[0] / duel[best] >= LEAST_GAIN else 0
        self.tuning.duel_ms = {str(index): ms for index, ms in duel.items()}
        self.tuning.date = now()
        self._save()
        self._tell("decided")

    def _sound(self) -> Iterator[tuple[int, Trial]]:
        return ((i, t) for i, t in enumerate(self.tuning.trials) if not t.problem)

    def _race(self, seqlen: int, indices: Sequence[int], rounds: int) -> dict[int, float]:
        """Best milliseconds of a call of each candidate."""
        device, variant = self.settings.device, self.entry.variant
        shape = self.settings.sizes.shape(variant.head_dim, seqlen)
        cell = Cell(variant, shape, DROPOUT_P if variant.dropout else 0.0)
        sets = [cell.inputs(device, seed) for seed in range(INPUT_SETS)]
        timed = {}
        for index in indices:
            kernel = self._kernel(self.tuning.trials[index])
            calls = []
            for data in sets:
                call: Any = partial(kernel, dropout_p=cell.dropout_p, **data.arguments)
                calls.append(Calls.of(Attend(call), data).call(self.pass_name))
            timed[str(index)] = Timed(rotate(calls))
        samples = measure(timed, rounds, device)
        return {int(name): min(found.ms) for name, found in samples.items()}

    def _fault(self, trial: Trial) -> str:
        """The worst that the error rule finds; "" where all is within."""
        kernel = self._kernel(trial)
        backward = self.pass_name == "backward"
        for shape in SHAPES:
            found = compare_call(kernel, shape, self.settings.device, backward=backward)
            for quantity, comparison in found.items():
                of_pass = (quantity not in FORWARD_QUANTITIES) == backward
                if of_pass and not comparison.ok:
                    return f"{quantity} at {shape}: {comparison}"
        return ""

    def _kernel(self, trial: Trial) -> Kernel:
        passes = ("forward",) if self.pass_name == "forward" else ("forward", "backward")
        spec = self._pinned(trial)
        return Kernel(
            self.entry.variant, self.settings.device, spec=spec, family=self.settings.family,
            passes=passes,
        )  # fmt: skip

    def _pinned(self, trial: Trial) -> Spec:
        """The entry's spec with the candidate's pins as its tuning of this pass."""
        pins = tuple(
            Pin(self.target.name, self.pass_name, field, value, 0, 0) for field, value in trial.pins
        )
        return replace(self.entry.spec, tuning=pins)

    def _request(self, trial: Trial) -> BuildRequest:
        return BuildRequest(
            self.entry.variant, self.pass_name, self.target, self.settings.family, trial.pins
        )

    def _save(self) -> None:
        save(self.tuning)

    def _tell(self, text: str) -> None:
        self.done += 1
        total = len(self.tuning.trials) + len(self.settings.seqlens) + 1
        self.tell(TuneEvent(self.done, total, text))


def _geomean(values: Any) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
