"""`flashgen tune`: the plan that is fastest on this device, for `build` and `load` to use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..generator.arch import FAMILIES
from ..generator.variant import PASSES
from ..runtime.catalogue import Catalogue
from .options import jobs_option, json_option, print_json, specs_option
from .progress import BAR_CELLS, BuildProgress
from .selection import select_entries
from .tables import print_table

if TYPE_CHECKING:
    from ..runtime.tuning.store import Tuning
    from ..runtime.tuning.tune import Settings, TuneEvent

_GPU_SEQLENS, _GPU_TOKENS, _GPU_HIDDEN = (1024, 4096), 16_384, 2_048
_CPU_SEQLENS, _CPU_TOKENS, _CPU_HIDDEN = (512,), 1_024, 256


@click.command("tune")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--passes", type=click.Choice(PASSES), multiple=True, help="Default: the spec's.")
@click.option("--family", type=click.Choice(FAMILIES), help="Whose plans (default: the best).")
@click.option(
    "--seqlen",
    "seqlens",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Length of a problem; repeatable, their geometric mean decides (1024 and 4096; cpu: 512).",
)
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Batch times seqlen.")
@click.option("--hidden", type=click.IntRange(min=1), metavar="N", help="Heads times head_dim.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=10, metavar="N", help="Samples of each (10)."
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="The first N candidates alone."
)
@jobs_option
@click.option("--device", metavar="DEVICE", help="Where to run, such as cpu or cuda:1.")
@click.option("--force", is_flag=True, help="Start anew where an earlier run got somewhere.")
@click.option("--write", is_flag=True, help="Also put the winners in the table that ships.")
@specs_option
@json_option
def command(
    keys: tuple[str, ...],
    passes: tuple[str, ...],
    write: bool,
    spec_dirs: tuple[Path, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Find the fastest plan of each KEY on this device.

    Every candidate of the planner is built and held to the error rule first. Then all are timed
    in turn, in random order, the best of each counts, and the best few meet the shipped plan
    once more: one that isn't 1 % faster doesn't take its place. The winner is kept in the cache
    for this model of device, and `build` and `load` use it. An interrupted run goes on where it
    was.

    \b
    Examples:
      flashgen tune d128-bf16-causal                     both passes, on this machine's GPU
      flashgen tune d64-fp32 --device cpu --limit 4      four candidates, on the CPU
      flashgen tune d128-bf16-causal --write             in a checkout: for everybody
    """
    entries = select_entries(Catalogue.load(spec_dirs), keys)
    settings = _settings(**options)
    from ..runtime.tuning.tune import tune

    found = []
    for entry in entries:
        for pass_name in passes or entry.spec.passes:
            bar = _Bar(f"{entry.key} {pass_name}", as_json)
            with BuildProgress(quiet=as_json) as progress:
                found.append(tune(entry, pass_name, settings, bar, progress))
            if not as_json:
                _print(found[-1])
    if as_json:
        print_json([_as_data(tuning) for tuning in found])
    if write:
        from ..runtime.tuning.ship import write_table

        click.echo(f"winners written to {write_table(found)}; run flashgen generate.", err=True)


def _settings(
    *,
    device: str | None,
    seqlens: tuple[int, ...],
    tokens: int | None,
    hidden: int | None,
    **others: Any,
) -> Settings:
    import torch  # here, so that --help and a wrong KEY answer at once

    from ..runtime.bench.cells import Sizes
    from ..runtime.devices import best_device
    from ..runtime.tuning.tune import Settings

    try:
        place = best_device() if device is None else torch.device(device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise click.BadParameter(reason, param_hint="--device") from None
    on_gpu = place.type == "cuda"
    if on_gpu and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    sizes = Sizes(
        tokens or (_GPU_TOKENS if on_gpu else _CPU_TOKENS),
        hidden or (_GPU_HIDDEN if on_gpu else _CPU_HIDDEN),
    )
    return Settings(place, seqlens or (_GPU_SEQLENS if on_gpu else _CPU_SEQLENS), sizes, **others)


def _print(tuning: Tuning) -> None:
    names = [name for name, _ in tuning.trials[0].pins]
    varying = [n for n in names if len({dict(trial.pins)[n] for trial in tuning.trials}) > 1]
    lengths = list(tuning.trials[0].ms)
    rows = []
    for index, trial in enumerate(tuning.trials):
        pins = dict(trial.pins)
        mark = "winner" if index == tuning.winner else trial.problem.split(":")[0]
        rows.append(
            (
                "shipped" if index == 0 else str(index),
                *(str(pins[name]) for name in varying),
                *(f"{trial.ms[length]:.4g}" if length in trial.ms else "-" for length in lengths),
                mark,
            )
        )
    titles = [f"ms@{length}" for length in lengths]
    print_table(("plan", *varying, *titles, "result"), rows, right=" ".join((*varying, *titles)))
    click.echo(
        f"{tuning.key} {tuning.pass_name} on {tuning.device}: "
        + (
            f"plan {tuning.winner} takes 1/{tuning.gain:.3f} of the shipped plan's time"
            if tuning.winner
            else "the shipped plan stays"
        )
    )
    for trial in tuning.trials:
        if trial.problem:
            click.echo(f"plan {dict(trial.pins)}: {trial.problem}", err=True)


def _as_data(tuning: Tuning) -> dict[str, Any]:
    return {
        "key": tuning.key,
        "pass": tuning.pass_name,
        "target": tuning.target,
        "family": tuning.family,
        "device": tuning.device,
        "winner": dict(tuning.trials[tuning.winner or 0].pins),
        "gain": tuning.gain,
        "trials": [{"pins": dict(t.pins), "ms": t.ms, "problem": t.problem} for t in tuning.trials],
    }


class _Bar:
    """A bar on a terminal, a line for each step elsewhere."""

    def __init__(self, name: str, quiet: bool) -> None:
        self._name = name
        self._quiet = quiet
        self._live = sys.stderr.isatty()

    def __call__(self, event: TuneEvent) -> None:
        if self._quiet:
            return
        text = f"{event.done}/{event.total} {self._name}: {event.text}"
        if not self._live:
            click.echo(f"[{text}]", err=True)
            return
        cells = BAR_CELLS * event.done // event.total
        bar = "#" * cells + "-" * (BAR_CELLS - cells)
        last = event.done == event.total
        click.echo(f"\r\x1b[K{'' if last else f'[{bar}] {text}'}", nl=False, err=True)
