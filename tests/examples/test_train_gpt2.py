from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tiny_training_learns_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("train_gpt2", ROOT / "examples/train_gpt2.py")
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "train_gpt2", example)
    spec.loader.exec_module(example)
    example.main(["--tiny", "--device", "cpu", "--out", str(tmp_path)])
    eager, ours = json.loads((tmp_path / "train.json").read_text())["runs"]
    assert eager["losses"][-1] < eager["losses"][0] - 0.5
    assert abs(ours["losses"][0] - eager["losses"][0]) < 0.05
    assert abs(sum(ours["losses"][-5:]) - sum(eager["losses"][-5:])) / 5 < 0.2
    assert (tmp_path / "loss.svg").read_text().count("<polyline") == 2
