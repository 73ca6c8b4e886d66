"""benchmarks/records.yaml -> records, and how they stand against their bars.

Each record is a run of `flashgen bench` in a process of its own:

    python benchmarks/record.py --list                          what there is
    python benchmarks/record.py sm80_sweep_h200 --out DIR       measure and judge these (or all)
    python benchmarks/record.py --judge                         judge what is committed
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from flashgen.runtime.bench.record import CellRecord, Record, is_ours, read_record
from flashgen.runtime.bench.table import size_of, summary_of

ROOT = Path(__file__).resolve().parents[1]
PLANNED = ROOT / "benchmarks" / "records.yaml"
RESULTS = ROOT / "benchmarks" / "results"


class Bar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a record is held to; its attributes are told in records.yaml."""

    passes: tuple[str, ...]
    over: tuple[str, ...]
    geomean: float | None = None
    least: float | None = None
    head_dims: tuple[int, ...] = ()
    seqlens: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()

    def is_about(self, cell: CellRecord) -> bool:
        """Whether ``cell`` counts."""
        return (
            (not self.head_dims or cell.head_dim in self.head_dims)
            and (not self.seqlens or cell.seqlen_q in self.seqlens)
            and (not self.keys or cell.key in self.keys)
        )

    def __str__(self) -> str:
        cells = [f"d{dim}" for dim in self.head_dims]
        cells += [f"seqlen {seqlen}" for seqlen in self.seqlens] + list(self.keys)
        about = f" ({', '.join(cells)})" if cells else ""
        best = "best of " if len(self.over) > 1 else ""
        return f"{' + '.join(self.passes)} over {best}{', '.join(self.over)}{about}"


class Planned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One record to make."""

    name: str
    bench: str
    bars: tuple[Bar, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """A bar and what was measured; without cells nothing was."""

    bar: Bar
    geomean: float
    least: float
    least_cell: str
    cells: int

    @property
    def holds(self) -> bool:
        """Whether there are cells, and both bars are met."""
        bar = self.bar
        return (
            self.cells > 0
            and (bar.geomean is None or self.geomean >= bar.geomean)
            and (bar.least is None or self.least >= bar.least)
        )

    def __str__(self) -> str:
        word = "holds" if self.holds else "missed"
        if not self.cells:
            return f"{word}: {self.bar}: no cell was measured"
        asked = {"geomean": self.bar.geomean, "least": self.bar.least}
        bars = ", ".join(f"{name} >= {bar}" for name, bar in asked.items() if bar is not None)
        return (
            f"{word}: {self.bar}: geomean {self.geomean:.3f}, least {self.least:.3f} "
            f"({self.least_cell}), {self.cells} cells; asked: {bars}"
        )


def planned() -> tuple[Planned, ...]:
    """Every record of records.yaml."""
    return msgspec.yaml.decode(PLANNED.read_bytes(), type=tuple[Planned, ...])


def judge(record: Record, bar: Bar) -> Verdict:
    """How ``record`` stands against ``bar``."""
    found = [
        (ratio, cell)
        for cell in record.cells
        if bar.is_about(cell) and (ratio := _ratio(record, cell, bar)) is not None
    ]
    return Verdict(bar, *summary_of(found), len(found)) if found else Verdict(bar, 0.0, 0.0, "", 0)


def _ratio(record: Record, cell: CellRecord, bar: Bar) -> float | None:
    """The best of the bar's peers over ours; None where one side has no measurement."""
    sizes = partial(_sum, cell, bar.passes, record.kind)
    ours = [sizes(name) for name in record.contenders if is_ours(name)]
    peers = [sizes(name) for name in bar.over]
    ours, peers = [x for x in ours if x], [x for x in peers if x]
    return min(peers) / min(ours) if ours and peers else None


def _sum(cell: CellRecord, passes: Sequence[str], kind: str, name: str) -> float | None:
    found = [m for m in (cell.of(name, pass_name) for pass_name in passes) if m is not None]
    return sum(size_of(m, kind) for m in found) if len(found) == len(passes) else None


def measure(entry: Planned, out: Path, commit: str | None, rounds: int | None) -> bool:
    """Run the record's command; whether it ended well."""
    command = [sys.executable, "-m", "flashgen", "bench", *shlex.split(entry.bench)]
    command += ["-o", str(out / f"{entry.name}.json")]
    command += ["--commit", commit] if commit else []
    command += ["--rounds", str(rounds)] if rounds else []
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def report(entries: Sequence[Planned], folder: Path) -> bool:
    """Print the verdicts of the records in ``folder``; whether all bars hold."""
    all_hold = True
    for entry in entries:
        file = folder / f"{entry.name}.json"
        if not file.is_file():
            print(f"{entry.name}: no record in {folder}")
            all_hold = False
            continue
        record = read_record(file)
        print(f"{entry.name} (commit {record.commit[:7] or '?'})")
        for cell in record.cells:
            for note in cell.errors:
                print(f"  error: {cell.label}, seqlen {cell.seqlen_q}: {note}")
                all_hold = False
        for verdict in (judge(record, bar) for bar in entry.bars):
            print(f"  {verdict}")
            all_hold &= verdict.holds
    return all_hold


def main() -> int:
    """0 where every bar holds, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of records (all)")
    parser.add_argument("--list", action="store_true", help="name the records and their commands")
    parser.add_argument("--judge", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="their folder (the committed)")
    parser.add_argument("--commit", help="for the record, where this is no checkout")
    parser.add_argument("--rounds", type=int, help="instead of the record's own; 1 warms caches")
    asked = parser.parse_args()
    known = {entry.name: entry for entry in planned()}
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
    entries = [known[name] for name in asked.names or known]
    if asked.list:
        for entry in entries:
            print(f"{entry.name}: flashgen bench {entry.bench}")
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    ended_well = True
    for entry in () if asked.judge else entries:
        print(f"==> {entry.name}", flush=True)
        ended_well &= measure(entry, asked.out.resolve(), asked.commit, asked.rounds)
    return 0 if report(entries, asked.out) and ended_well else 1


if __name__ == "__main__":
    sys.exit(main())
