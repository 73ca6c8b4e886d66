"""The committed records are within the bars that the project sets itself."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def record(name):
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def test_speed_of_sm80_beside_flash_attention():
    bars = {"forward": 0.70, "backward": 0.60}
    cells = [
        cell
        for cell in record("sm80_sweep_h200")["cells"]
        if cell["seqlen_q"] == 4096 and cell["head_dim"] in (64, 128)
    ]
    assert len(cells) == 4
    for cell in cells:
        ms = {(m["contender"], m["pass_name"]): m["median_ms"] for m in cell["measurements"]}
        for name, bar in bars.items():
            assert ms["flash", name] / ms["flashgen:sm80", name] >= bar, (cell["key"], name)


def test_memory_beside_flash_attention():
    cell = record("memory_h200")["cells"][-1]
    peak = {m["contender"]: m["peak_bytes"] for m in cell["measurements"]}
    assert cell["seqlen_q"] == 4096 and peak["flashgen:sm80"] <= peak["flash"]


def test_cost_of_the_language():
    rows = [row for row in record("language_cost_h200")["rows"] if row["bar_ms"] is not None]
    assert {"free", "window", "document"} <= {row["program"] for row in rows}
    assert all(row["forward_ms"] <= row["bar_ms"] for row in rows)


def test_speed_of_the_cpu_forward():
    rows = {row["key"]: row["ratio"] for row in record("cpu_forward")["rows"]}
    assert rows["d64-fp32"] >= 0.5 and rows["d64-fp32-causal"] >= 0.5
