"""The scripts in benchmarks/ start, and records are held to the bars that are written down."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen.cli import bench
from flashgen.runtime.bench.peers import PEERS
from flashgen.runtime.bench.record import CellRecord, DeviceRecord, Measurement, Record

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_it_says_what_it_takes(script):
    done = subprocess.run(
        [sys.executable, script, "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()


def _record_script():
    """benchmarks/record.py as a module."""
    path = BENCHMARKS / "record.py"
    spec = importlib.util.spec_from_file_location("record_script", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its annotations are looked up there
    spec.loader.exec_module(module)
    return module


record_script = _record_script()


@pytest.mark.parametrize("entry", record_script.planned(), ids=lambda entry: entry.name)
def test_a_planned_record_is_a_command_that_bench_takes(entry, monkeypatch):
    """Options, keys and peers are known, and each bar is about cells that will be there."""
    monkeypatch.chdir(BENCHMARKS.parent)
    context = bench.command.make_context("bench", shlex.split(entry.bench))
    fields = {field.name for field in dataclasses.fields(bench.Asked)}
    options = {name: value for name, value in context.params.items() if name in fields}
    asked = bench.Asked(**options)
    cells = bench._cells(asked)
    peers = asked.peers or asked.defaults.peers
    passes = asked.passes or asked.defaults.passes
    for bar in entry.bars:
        assert set(bar.over) <= set(peers) <= set(PEERS)
        assert set(bar.passes) <= set(passes)
        assert set(bar.keys) <= {cell.variant.key for cell in cells}
        assert set(bar.seqlens) <= {cell.shape.seqlen_q for cell in cells}
        assert set(bar.head_dims) <= {cell.variant.head_dim for cell in cells}


def _cell(seqlen, **ms):
    """A cell whose contenders took so long, forward, and twice that backward."""
    return CellRecord(
        key="d64-bf16", label="d64-bf16", head_dim=64, head_dim_v=64, dtype="bf16", causal=False,
        batch=1, num_heads=1, num_heads_kv=1, seqlen_q=seqlen, seqlen_k=seqlen,
        measurements=tuple(
            Measurement(contender=name, pass_name=pass_name, median_ms=factor * value)
            for name, value in ms.items()
            for pass_name, factor in (("forward", 1), ("backward", 2))
        ),
    )  # fmt: skip


def _judged(**bar):
    cells = (_cell(512, flashgen=1.0, flash=1.1, cudnn=0.9), _cell(1024, flashgen=1.0, flash=1.6))
    record = Record(
        kind="speed", date="", commit="", command="", method="",
        device=DeviceRecord(name="none"), versions={}, absent=(), cells=cells,
    )  # fmt: skip
    return record_script.judge(record, record_script.Bar(**bar))


def test_the_best_peer_of_each_cell_counts():
    found = _judged(passes=("forward",), over=("flash", "cudnn"), geomean=1.2)
    assert (found.cells, found.least, found.least_cell) == (2, 0.9, "d64-bf16, seqlen 512")
    assert found.geomean == pytest.approx((0.9 * 1.6) ** 0.5)
    assert found.holds and str(found).startswith("holds")
    assert not _judged(passes=("forward",), over=("flash", "cudnn"), least=0.91).holds


def test_a_bar_may_be_about_some_cells_and_several_passes():
    found = _judged(passes=("forward", "backward"), over=("cudnn",), seqlens=(512,), least=0.9)
    assert found.cells == 1 and found.least == pytest.approx(0.9) and found.holds


def test_a_bar_without_a_cell_is_missed():
    found = _judged(passes=("step",), over=("flash",), least=0.0)
    assert not found.holds and "no cell" in str(found)
