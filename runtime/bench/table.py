"""Record -> tables: a row for each cell and pass, and the geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .record import CellRecord, Measurement, Record, is_ours


@dataclass(frozen=True, slots=True)
class Table:
    """Text to lay out.

    Attributes:
        header: column titles.
        rows: one string a column.
        right: titles of the columns to align right.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...]

    def markdown(self) -> str:
        """The table in Markdown."""
        rule = ["---:" if title in self.right else "---" for title in self.header]
        lines = [self.header, tuple(rule), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How ours stands against one peer in one pass, over all cells that both have.

    Attributes:
        ours: our contender's name.
        peer: the other's.
        pass_name: of both.
        geomean: of peer's time over ours; above 1 ours is faster. Of bytes with kind memory.
        least: the least of the cells.
        least_label: which cell that is.
        cells: how many there are.
    """

    ours: str
    peer: str
    pass_name: str
    geomean: float
    least: float
    least_label: str
    cells: int

    def __str__(self) -> str:
        return (
            f"{self.pass_name}, {self.ours} over {self.peer}: geomean {self.geomean:.3f}, least "
            f"{self.least:.3f} ({self.least_label}), {self.cells} cells"
        )


def table(record: Record) -> Table:
    """What each contender did in each cell and pass, with ours over the others'.

    Speeds are TFLOP/s, or milliseconds where a mask doesn't say how many FLOPs there are;
    memory is MB (1e6 bytes) over the inputs; host times are microseconds a call. A ratio above 1
    says that ours is faster, or smaller.
    """
    contenders = record.contenders
    ours = [name for name in contenders if is_ours(name)]
    peers = [name for name in contenders if not is_ours(name)]
    ratios = [(o, p) for o in ours for p in peers]
    titles = tuple(f"{o}/{p}" if len(ours) > 1 else f"/{p}" for o, p in ratios)
    unit = {"memory": "MB", "host": "us"}.get(record.kind, "unit")
    rows = []
    for cell in record.cells:
        for pass_name in record.passes:
            found = {name: cell.of(name, pass_name) for name in contenders}
            if not any(found.values()):
                continue
            in_tflops = any(m is not None and m.tflops is not None for m in found.values())
            shown = unit if unit != "unit" else "TFLOP/s" if in_tflops else "ms"
            values = [_value(m, record.kind) for m in found.values()]
            numbers = [_ratio(found[o], found[p], record.kind) for o, p in ratios]
            texts = ["-" if r is None else f"{r:.2f}" for r in numbers]
            sizes = (cell.label, str(cell.seqlen_q), pass_name, shown)
            rows.append((*sizes, *values, *texts))
    header = ("variant", "seqlen", "pass", "in", *contenders, *titles)
    return Table(header, tuple(rows), ("seqlen", *contenders, *titles))


def ratios_of(record: Record) -> list[Ratio]:
    """The geometric means and the worst cells, for each pass and peer."""
    found = []
    for pass_name in record.passes:
        for ours in filter(is_ours, record.contenders):
            for peer in record.contenders:
                cells = [] if is_ours(peer) else list(_cell_ratios(record, ours, peer, pass_name))
                if cells:
                    found.append(Ratio(ours, peer, pass_name, *summary_of(cells), len(cells)))
    return found


def summary_of(cells: Sequence[tuple[float, CellRecord]]) -> tuple[float, float, str]:
    """The geometric mean of the cells' ratios, the least, and which cell has that."""
    mean = math.exp(sum(math.log(ratio) for ratio, _ in cells) / len(cells))
    least, cell = min(cells, key=lambda pair: pair[0])
    return mean, least, f"{cell.label}, seqlen {cell.seqlen_q}"


def _cell_ratios(
    record: Record, ours: str, peer: str, pass_name: str
) -> Iterator[tuple[float, CellRecord]]:
    for cell in record.cells:
        ratio = _ratio(cell.of(ours, pass_name), cell.of(peer, pass_name), record.kind)
        if ratio is not None:
            yield ratio, cell


def _ratio(ours: Measurement | None, peer: Measurement | None, kind: str) -> float | None:
    if ours is None or peer is None:
        return None
    least = 1.0 if kind == "memory" else 0.0  # a call may need no byte
    return size_of(peer, kind) / max(size_of(ours, kind), least)


def size_of(found: Measurement, kind: str) -> float:
    """What is compared, the smaller the better: bytes with kind memory, else milliseconds."""
    if kind == "memory":
        return float(found.peak_bytes or 0)
    assert found.median_ms is not None
    return found.median_ms


def _value(found: Measurement | None, kind: str) -> str:
    if found is None:
        return "-"
    size = size_of(found, kind)
    if kind == "memory":
        return f"{size / 1e6:.0f}"
    if kind == "host":
        return f"{size * 1e3:.1f}"
    if found.tflops is None:
        return f"{size:.4g}"
    return f"{found.tflops:.0f}" if found.tflops >= 100 else f"{found.tflops:.3g}"
