from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["train_gpt2", "train_bert", "long_document"])
def test_tiny_training_learns_alike(name, tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "examples-cache"))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module(name)
    training = importlib.import_module("training")
    training.main(example.EXAMPLE, "", ["--tiny", "--device", "cpu", "--out", str(tmp_path)])
    runs = {
        run["attention"]: run for run in json.loads((tmp_path / f"{name}.json").read_text())["runs"]
    }
    assert list(runs) == list(example.EXAMPLE.attentions)
    ours, others = runs.pop("flashgen"), runs.values()
    for run in (ours, *others):
        assert run["losses"][-1] < run["losses"][0] - 0.5
        assert run["step_ms"] > 0 and run["tokens_per_s"] > 0 and run["tflop_per_s"] > 0
    for other in others:
        assert abs(ours["losses"][0] - other["losses"][0]) < 0.05
        assert abs(sum(ours["losses"][-5:]) - sum(other["losses"][-5:])) / 5 < 0.2
    assert (tmp_path / f"{name}.svg").read_text().count("<polyline") == len(runs) + 1
