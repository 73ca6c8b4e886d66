"""Records -> the tables and plots of docs/performance.md: run `python docs/make_performance.py`.

A line `<!-- record: NAME -->` is followed by the table of benchmarks/results/NAME.json and the
geometric means, up to `<!-- end -->`. Pictures below docs/speed/ are those of `flashgen bench
--plot`, drawn where the page shows them.
"""

from __future__ import annotations

import re
from pathlib import Path

from flashgen.runtime.bench import plots, table
from flashgen.runtime.bench.record import read_record

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "performance.md"
PICTURES = FOLDER / "speed"
RESULTS = FOLDER.parent / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- record: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PICTURE = re.compile(r"\(speed/([^)]+\.png)\)")


def page_text(text: str) -> str:
    """The page with each block's table as its record has it."""
    return BLOCK.sub(lambda match: f"{match[1]}{block_text(match[2])}{match[3]}", text)


def block_text(name: str) -> str:
    """The command, the table and the geometric means of a record."""
    record = read_record(RESULTS / f"{name}.json")
    ratios = "".join(f"* {ratio}\n" for ratio in table.ratios_of(record))
    command = f"`{record.command}`"
    return f"{command}\n\n{table.table(record).markdown()}\n\n{ratios}"


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
