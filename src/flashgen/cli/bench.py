"""`flashgen bench`: kernels against every other implementation that is there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..generator.arch import FAMILIES
from ..generator.variant import DTYPES
from .exits import CHECK_FAILED
from .options import specs_option
from .progress import BuildProgress
from .tables import format_table

if TYPE_CHECKING:
    import torch

    from ..runtime.bench.cells import Cell
    from ..runtime.bench.peers import Peer
    from ..runtime.bench.record import Kind, Note, Record

_CAUSAL = {"both": (False, True), "no": (False,), "yes": (True,)}
_PASSES = ("forward", "backward", "recorded", "step")
_COUNT = click.IntRange(min=1)
_FILE = click.Path(dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a kind of run measures where options don't say."""

    dims: tuple[int, ...]
    dtype: str
    causal: str
    dropout_p: float
    seqlens: tuple[int, ...]
    passes: tuple[str, ...]
    peers: tuple[str, ...] | None = None  # None: all that are there
    batch: int | None = None
    heads: int | None = None


_SEQLENS = (512, 1024, 2048, 4096, 8192, 16_384)
_DEFAULTS: dict[str, Defaults] = {
    "speed": Defaults((64, 128, 256), "bf16", "both", 0.0, _SEQLENS, _PASSES[:2]),
    "memory": Defaults(
        (64,), "fp16", "yes", 0.1, _SEQLENS[:4], _PASSES[3:], ("eager", "flash"), 4, 16
    ),
    "host": Defaults((128,), "bf16", "yes", 0.0, (128,), _PASSES, None, 1, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of a run that measures, as given."""

    keys: tuple[str, ...]
    dims: tuple[int, ...] | None
    seqlens: tuple[int, ...] | None
    dtype: str | None
    causal: str | None
    dropout_p: float | None
    deterministic: bool
    tokens: int
    hidden: int
    batch: int | None
    heads: int | None
    heads_kv: int | None
    span: int
    passes: tuple[str, ...] | None
    peers: tuple[str, ...] | None
    families: tuple[str, ...]
    regime: str
    rounds: int
    kind: Kind
    device: str | None
    commit: str | None
    spec_dirs: tuple[Path, ...]

    @property
    def defaults(self) -> Defaults:
        """Of the kind that is asked for."""
        return _DEFAULTS[self.kind]


def listed(kind: type = str, choices: Sequence[str] = ()) -> Callable[[str], tuple[Any, ...]]:
    """A reader of values separated by commas, ``64,128``; it drops repeats."""
    numbers = "positive numbers" if kind is int else "names"
    expected = f"some of {', '.join(choices)}" if choices else numbers

    def read(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        try:
            found = tuple(dict.fromkeys(kind(part) for part in parts))
        except ValueError:
            found = ()
        wrong = [v for v in found if (choices and v not in choices) or (kind is int and v < 1)]
        if wrong or not found:
            raise click.BadParameter(f"expected {expected}, got {text!r}.")
        return found

    return read


@click.command("bench")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--dims", type=listed(int), metavar="N,...", help="Head sizes of the sweep (64,128,256)."
)
@click.option(
    "--seqlens",
    type=listed(int),
    metavar="N,...",
    help="Sequence lengths (512,1024,2048,4096,8192,16384).",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the sweep (bf16).")
@click.option("--causal", type=click.Choice([*_CAUSAL]), help="Masks of the sweep (both).")
@click.option(
    "--dropout",
    "dropout_p",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Probability of dropping an element.",
)
@click.option("--deterministic", is_flag=True, help="The deterministic variants of the sweep.")
@click.option(
    "--tokens", type=_COUNT, default=16_384, metavar="N", help="Batch times seqlen (16384)."
)
@click.option(
    "--hidden", type=_COUNT, default=2_048, metavar="N", help="Heads times head_dim (2048)."
)
@click.option("--batch", type=_COUNT, metavar="N", help="Batch of every cell, instead of --tokens.")
@click.option("--heads", type=_COUNT, metavar="N", help="Heads of every cell, instead of --hidden.")
@click.option("--heads-kv", type=_COUNT, metavar="N", help="Heads of keys and values (as many).")
@click.option(
    "--span",
    type=_COUNT,
    default=1024,
    metavar="N",
    help="Keys of a run-time window, tokens of a document and of a prefix (1024).",
)
@click.option(
    "--passes",
    type=listed(str, _PASSES),
    metavar="NAME,...",
    help="forward, backward, recorded (a forward for autograd), step (that and its backward).",
)
@click.option(
    "--peers",
    type=listed(),
    metavar="NAME,...",
    help="flash, cudnn, efficient, math, flex, fa2, fa3, fa4 (default: all that are there); "
    "eager, unordered and undropped (ours without deterministic, without dropout); or none.",
)
@click.option(
    "--family",
    "families",
    type=click.Choice(FAMILIES),
    multiple=True,
    help="Whose templates make ours; repeatable, to compare families.",
)
@click.option(
    "--regime",
    type=click.Choice(["burst", "sustained"]),
    default="burst",
    help="burst: 10 ms of work, 10 ms idle; sustained: no gaps, so that the power limit rules.",
)
@click.option(
    "--rounds", type=_COUNT, default=15, metavar="N", help="Samples of each contender (15)."
)
@click.option(
    "--memory", "kind", flag_value="memory", help="Peak bytes of a step, against eager attention."
)
@click.option(
    "--host", "kind", flag_value="host", help="The host's time of a call, on a tiny problem."
)
@click.option("--speed", "kind", flag_value="speed", default=True, hidden=True)
@click.option("--device", metavar="DEVICE", help="Where to run, such as cpu or cuda:1.")
@click.option(
    "-o",
    "--out",
    type=_FILE,
    metavar="FILE",
    help="Write the record as JSON; with --plot, how the pictures' names start.",
)
@click.option("--commit", metavar="HASH", help="For the record, where this is no checkout.")
@click.option(
    "--show", type=_FILE, metavar="RECORD", help="Measure nothing: print a record as Markdown."
)
@click.option(
    "--plot",
    type=_FILE,
    metavar="RECORD",
    help="Measure nothing: draw a record (needs the extra bench).",
)
@click.option(
    "--format", "suffix", type=click.Choice(["png", "svg"]), default="png", help="Of the pictures."
)
@specs_option
def command(
    show: Path | None, plot: Path | None, suffix: str, out: Path | None, **options: Any
) -> None:
    """Time kernels against every other implementation of attention that is there.

    Without KEY: the standard sweep of 36 cells, 16,384 tokens, hidden size 2,048, head_dim 64, 128
    and 256, causal or not, forward and backward. Contenders alternate in one process in random
    order; a peer's output and gradients are compared with ours before it is timed. A peer that
    isn't there, or has no kernel for a cell, is named with its reason; one that differs or falls
    back to another implementation is an error (exit 1).

    \b
    Examples:
      flashgen bench -o sweep.json                                    the sweep
      flashgen bench --dims 72,80 --causal yes --peers flash,cudnn    other head sizes
      flashgen bench mistral --seqlens 4096                           a spec
      flashgen bench --memory                                         peak memory
      flashgen bench --plot sweep.json -o docs/sweep                  pictures of a record
    """
    if show is not None or plot is not None:
        _read(show, plot, out, suffix)
        return
    asked = Asked(**options)
    record = _measure(asked, out)
    _print(record)
    if any(cell.errors for cell in record.cells):
        raise click.exceptions.Exit(CHECK_FAILED)


def _read(show: Path | None, plot: Path | None, out: Path | None, suffix: str) -> None:
    from ..runtime.bench import plots, table
    from ..runtime.bench.record import read_record

    if show is not None:
        record = read_record(show)
        click.echo(table.table(record).markdown())
        click.echo("".join(f"\n* {ratio}" for ratio in table.ratios_of(record)))
    if plot is not None:
        for file in plots.plot(read_record(plot), out or Path(plot.stem), suffix):
            click.echo(str(file))


def _measure(asked: Asked, out: Path | None) -> Record:
    import torch  # here, so that --help answers at once

    from ..runtime.bench import run
    from ..runtime.bench.contest import build_ours
    from ..runtime.devices import best_device

    try:
        device = best_device() if asked.device is None else torch.device(asked.device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise click.BadParameter(reason, param_hint="--device") from None
    cells = _cells(asked)
    contenders, absent = _contenders(asked, device)
    for note in absent:
        click.echo(f"{note.contender} isn't here: {note.reason}", err=True)
    with BuildProgress() as progress:
        build_ours(cells, contenders, device, progress)
    settings = run.Settings(
        kind=asked.kind,
        device=device,
        passes=asked.passes or asked.defaults.passes,
        rounds=asked.rounds,
        sustained=asked.regime == "sustained",
        command=_command_line(),
        commit=asked.commit,
    )
    return run.run(cells, contenders, settings, absent, _Progress(len(cells), out))


def _cells(asked: Asked) -> list[Cell]:
    from ..runtime.bench import cells
    from ..runtime.catalogue import Catalogue
    from .selection import select_entries

    defaults = asked.defaults
    p = defaults.dropout_p if asked.dropout_p is None else asked.dropout_p
    found: Sequence[Any]
    if asked.keys:
        if asked.dims or asked.dtype or asked.causal or asked.deterministic:
            raise click.UsageError(
                "a KEY has its own head size, dtype and masks: drop --dims and the like."
            )
        found = select_entries(Catalogue.load(asked.spec_dirs), asked.keys)
    else:
        found = cells.sweep_variants(
            asked.dims or defaults.dims,
            asked.dtype or defaults.dtype,
            _CAUSAL[asked.causal or defaults.causal],
            p > 0,
            asked.deterministic,
        )
    sizes = cells.Sizes(
        asked.tokens,
        asked.hidden,
        asked.batch or defaults.batch,
        asked.heads or defaults.heads,
        asked.heads_kv,
    )
    return cells.cells_of(found, asked.seqlens or defaults.seqlens, sizes, p, asked.span)


def _contenders(asked: Asked, device: torch.device) -> tuple[list[Peer], list[Note]]:
    """Ours and the peers that are there, and why others aren't."""
    from ..runtime.bench import peers
    from ..runtime.bench.record import Note

    names = asked.peers or asked.defaults.peers or peers.DEFAULT
    family = asked.families[0] if asked.families else None
    chosen = [] if names == ("none",) else peers.peers_named(names, family)
    reasons = [(peer, peer.absent(device)) for peer in chosen]
    ours = [peers.Ours(family) for family in asked.families or (None,)]
    absent = [Note(peer.name, reason) for peer, reason in reasons if reason is not None]
    return [*ours, *(peer for peer, reason in reasons if reason is None)], absent


def _print(record: Record) -> None:
    from ..runtime.bench.table import ratios_of, table

    found = table(record)
    click.echo(format_table(found.header, found.rows, right=" ".join(found.right)))
    for ratio in ratios_of(record):
        click.echo(str(ratio))
    for cell in record.cells:
        where = f"{cell.label}, seqlen {cell.seqlen_q}"
        for note in cell.refused:
            click.echo(f"{where}: {note.contender} has no row: {note.reason}", err=True)
        for note in cell.errors:
            click.echo(f"error: {where}: {note.contender}: {note.reason}", err=True)


def _command_line() -> str:
    """What was called, without where the record goes and what it says of the commit."""
    words = iter(sys.argv[1:])
    kept = ["flashgen"]
    for word in words:
        if word in ("-o", "--out", "--commit"):
            next(words, None)
        elif not word.startswith(("--out=", "--commit=")):
            kept.append(word)
    return shlex.join(kept)


class _Progress:
    """One living line on a terminal, a line for each cell elsewhere; writes what there is."""

    def __init__(self, total: int, out: Path | None) -> None:
        self._total = total
        self._out = out
        self._done = 0
        self._live = sys.stderr.isatty()

    def __call__(self, record: Record) -> None:
        if self._out is not None:
            from ..runtime.bench.record import write_record

            write_record(record, self._out)
        self._done, cell = len(record.cells), record.cells[-1]
        text = f"[{self._done}/{self._total}] {cell.label}, seqlen {cell.seqlen_q}"
        if self._live:
            click.echo(f"\r\x1b[K{text if self._done < self._total else ''}", nl=False, err=True)
        else:
            click.echo(text, err=True)
