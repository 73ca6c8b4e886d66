"""Records -> the tables and plots of docs/performance.md: run `python docs/make_performance.py`.

A line `<!-- record: NAME -->` is followed by the table of benchmarks/results/NAME.json and the
geometric means, up to `<!-- end -->`; `<!-- cost: NAME -->` by that of benchmarks/language_cost.py.
Pictures below docs/speed/ are those of `flashgen bench --plot`, drawn where the page shows them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from flashgen.runtime.bench import plots, table
from flashgen.runtime.bench.record import read_record

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "performance.md"
PICTURES = FOLDER / "speed"
RESULTS = FOLDER.parent / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- record: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
COST = re.compile(r"(<!-- cost: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PICTURE = re.compile(r"\(speed/([^)]+\.png)\)")


def page_text(text: str) -> str:
    """The page with each block's table as its record has it."""
    text = BLOCK.sub(lambda match: f"{match[1]}{block_text(match[2])}{match[3]}", text)
    return COST.sub(lambda match: f"{match[1]}{cost_text(match[2])}{match[3]}", text)


def block_text(name: str) -> str:
    """The command, the table and the geometric means of a record."""
    record = read_record(RESULTS / f"{name}.json")
    ratios = "".join(f"* {ratio}\n" for ratio in table.ratios_of(record))
    command = f"`{record.command}`"
    return f"{command}\n\n{table.table(record).markdown()}\n\n{ratios}"


def cost_text(name: str) -> str:
    """The commit and the table of a record of benchmarks/language_cost.py, in milliseconds."""
    record = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    lines = [
        f"Commit {record['commit'][:7]}; {record['method']}.\n",
        "| program | forward | over plain | bar | backward | over plain |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        bar = "" if row["bar_ms"] is None else f"{row['bar_ms']:.2f}"
        times = [
            f"{row[f'{name}_{what}']:.2f}"
            for name in ("forward", "backward")
            for what in ("ms", "over_plain")
        ]
        lines.append(f"| {' | '.join([row['program'], *times[:2], bar, *times[2:]])} |")
    return "\n".join(lines) + "\n"


def draw(text: str) -> list[Path]:
    """The pictures that the page shows, drawn anew; others of the same records are removed."""
    shown = set(PICTURE.findall(text))
    kept = []
    for name in dict.fromkeys(match[1] for match in BLOCK.findall(text)):
        if any(picture.startswith(f"{name}_") for picture in shown):
            files = plots.plot(read_record(RESULTS / f"{name}.json"), PICTURES / name, "png")
            for file in files:
                kept.append(file) if file.name in shown else file.unlink()
    return kept


def main() -> None:
    """Rewrite the page and its pictures."""
    text = page_text(PAGE.read_text("utf-8"))
    PAGE.write_text(text, "utf-8")
    PICTURES.mkdir(exist_ok=True)
    for file in draw(text):
        print(file)


if __name__ == "__main__":
    main()
