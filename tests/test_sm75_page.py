"""docs/sm75.md: its figures are those of the record."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_figures_are_those_of_the_record():
    record = json.loads((ROOT / "benchmarks/results/sm75_h200.json").read_text(encoding="utf-8"))
    measured: dict[tuple[str, str], dict[str, str]] = {}
    for cell in record["cells"]:
        for found in cell["measurements"]:
            row = measured.setdefault((cell["key"], found["pass_name"]), {})
            row[found["contender"]] = f"{found['tflops']:.0f}"
    page = (ROOT / "docs/sm75.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (d[\w-]+) \| (\w+ward) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert shown == [
        (*name, row["flashgen:sm80"], row["flashgen:sm75"]) for name, row in measured.items()
    ]
