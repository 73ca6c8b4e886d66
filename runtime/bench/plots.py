"""Record -> pictures, with matplotlib: the optional extra ``bench``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...generator.errors import FlashgenError
from .record import CellRecord, Measurement, Record, is_ours
from .table import ratios_of

_PANEL_INCHES = (4.2, 3.0)
_COLUMNS = 3
_DPI = 110
_OURS_WIDTH, _PEER_WIDTH = 2.4, 1.3
_Value = Callable[[Measurement], float | None]


def plot(record: Record, stem: Path, suffix: str) -> list[Path]:
    """Draw ``record`` into files ``stem``_WHAT.suffix; gives their paths.

    Speed: TFLOP/s by sequence length, a file for each pass with a panel for each variant, and
    bars of the ratios to each peer. Memory: the peak by sequence length. Host: bars.

    Args:
        record: what to draw.
        stem: folder and the start of the files' names.
        suffix: ``png`` or ``svg``.

    Raises:
        FlashgenError: when matplotlib is missing.
    """
    pyplot = _pyplot()
    files = []
    for name, figure in _figures(pyplot, record):
        files.append(stem.with_name(f"{stem.name}_{name}.{suffix}"))
        # no date and no version: the same record gives the same file
        about = {"Date": None} if suffix == "svg" else {"Software": None}
        figure.savefig(files[-1], dpi=_DPI, metadata=about)
        pyplot.close(figure)
    return files


def _figures(pyplot: Any, record: Record) -> Iterator[tuple[str, Any]]:
    """The figures of a record that have anything to show, by the end of their file's name."""
    for pass_name in record.passes:
        figures = {}
        if record.kind == "speed":
            figures["tflops"] = _lines(pyplot, record, pass_name, "TFLOP/s", _tflops)
        if record.kind == "memory":
            figures["peak"] = _lines(pyplot, record, pass_name, "MB over the inputs", _megabytes)
        else:
            figures["ratio"] = _bars(pyplot, record, pass_name)
        for name, figure in figures.items():
            if figure is not None:
                yield f"{pass_name}_{name}", figure


def _tflops(found: Measurement) -> float | None:
    return found.tflops


def _megabytes(found: Measurement) -> float | None:
    return None if found.peak_bytes is None else found.peak_bytes / 1e6


def _lines(pyplot: Any, record: Record, pass_name: str, unit: str, value: _Value) -> Any:
    """A panel for each variant that has more than one length, a line for each contender."""
    panels: dict[str, list[CellRecord]] = {}
    for cell in sorted(record.cells, key=lambda cell: (cell.causal, cell.head_dim)):
        panels.setdefault(cell.label, []).append(cell)
    panels = {label: cells for label, cells in panels.items() if len(cells) > 1}
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (label, cells) in zip(axes.flat, panels.items(), strict=False):
        _panel(axis, record.contenders, cells, pass_name, value)
        axis.set_title(f"{label}, {pass_name}", fontsize=9)
        axis.set_ylabel(unit, fontsize=8)
        axis.set_yscale("log") if record.kind == "memory" else axis.set_ylim(bottom=0)
    axes.flat[0].legend(fontsize=7)
    figure.suptitle(_title(record), fontsize=9)
    return figure


def _panel(
    axis: Any,
    contenders: Sequence[str],
    cells: Sequence[CellRecord],
    pass_name: str,
    value: _Value,
) -> None:
    for index, contender in enumerate(contenders):
        found = [(cell.seqlen_q, cell.of(contender, pass_name)) for cell in cells]
        points = [(x, value(m)) for x, m in found if m is not None]
        points = [(x, y) for x, y in points if y is not None]
        width = _OURS_WIDTH if is_ours(contender) else _PEER_WIDTH
        x, y = zip(*points, strict=True) if points else ((), ())
        axis.plot(
            x, y, marker="o", markersize=3, linewidth=width, label=contender, color=f"C{index}"
        )
    lengths = sorted({cell.seqlen_q for cell in cells})
    axis.set_xscale("log", base=2)
    axis.set_xlabel("seqlen", fontsize=8)
    axis.set_xticks(lengths, [str(n) for n in lengths], fontsize=7)
    axis.tick_params(axis="y", labelsize=7)
    axis.grid(alpha=0.3)


def _bars(pyplot: Any, record: Record, pass_name: str) -> Any:
    """The ratio to each peer: the geometric mean as a bar, the worst cell as a tick."""
    ratios = [ratio for ratio in ratios_of(record) if ratio.pass_name == pass_name]
    if not ratios:
        return None
    figure, axis = pyplot.subplots(figsize=(6.4, 0.5 * len(ratios) + 1.2), layout="constrained")
    places = range(len(ratios))
    axis.barh(places, [ratio.geomean for ratio in ratios], color="C0", height=0.6)
    axis.plot([ratio.least for ratio in ratios], places, "k|", markersize=14)
    for place, ratio in zip(places, ratios, strict=True):
        text = f" {ratio.geomean:.2f} (least {ratio.least:.2f})"
        axis.text(max(ratio.geomean, ratio.least), place, text, va="center", fontsize=7)
    names = [f"{ratio.ours} / {ratio.peer}" for ratio in ratios]
    axis.set_yticks(places, names, fontsize=8)
    axis.axvline(1.0, color="0.4", linewidth=1)
    axis.margins(x=0.25)
    axis.set_xlabel(f"{pass_name}: the peer's over ours; above 1 ours is better", fontsize=8)
    axis.set_title(_title(record), fontsize=9)
    return figure


def _title(record: Record) -> str:
    return f"{record.device.name}, {record.date[:10]}, torch {record.versions.get('torch', '?')}"


def _pyplot() -> Any:
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        raise FlashgenError(
            "bench: --plot: expected the package matplotlib, found none. Install it with: "
            "pip install 'flashgen[bench]'"
        ) from None
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "flashgen"
    return importlib.import_module("matplotlib.pyplot")
