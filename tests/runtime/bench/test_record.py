"""Records, their tables and plots."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.errors import ArgumentError, FlashgenError
from flashgen.runtime.bench import plots, table
from flashgen.runtime.bench.record import (
    CellRecord,
    DeviceRecord,
    Measurement,
    Note,
    Record,
    read_record,
    write_record,
)


def cell(seqlen, ms, **more):
    found = tuple(
        Measurement(contender=name, pass_name="forward", median_ms=value, quartiles_ms=(1.0, 2.0),
                    tflops=10 / value)
        for name, value in ms.items()
    )  # fmt: skip
    return CellRecord(
        key="d64-bf16", label="d64-bf16", head_dim=64, head_dim_v=64, dtype="bf16", causal=False,
        batch=1, num_heads=2, num_heads_kv=2, seqlen_q=seqlen, seqlen_k=seqlen,
        measurements=found, **more,
    )  # fmt: skip


def record_of(cells, kind="speed"):
    return Record(
        kind=kind, date="2026-12-02T00:00:00+00:00", commit="abc", command="flashgen bench",
        method="m", device=DeviceRecord(name="a GPU"), versions={"torch": "2"}, absent=(),
        cells=tuple(cells),
    )  # fmt: skip


@pytest.fixture
def record():
    return record_of(
        [
            cell(64, {"flash": 2.0, "flashgen": 1.0}, refused=(Note("cudnn", "no"),)),
            cell(128, {"flash": 0.5, "flashgen": 1.0}),
        ]
    )


def test_what_is_written_is_read(record, tmp_path):
    write_record(record, tmp_path / "r.json")
    assert read_record(tmp_path / "r.json") == record
    lines = (tmp_path / "r.json").read_text().splitlines()
    assert sum('"contender": "flashgen"' in line and '"tflops"' in line for line in lines) == 2


def test_another_file_is_no_record(tmp_path):
    (tmp_path / "r.json").write_text('{"benchmark": "sm80_speed"}')
    with pytest.raises(ArgumentError, match="expected a record of `flashgen bench`, got: "):
        read_record(tmp_path / "r.json")
    with pytest.raises(ArgumentError, match="none.json: expected a record, got No such file"):
        read_record(tmp_path / "none.json")


def test_table_puts_ours_first_and_gives_ratios(record):
    found = table.table(record)
    assert found.header == ("variant", "seqlen", "pass", "in", "flashgen", "flash", "/flash")
    assert found.rows[0] == ("d64-bf16", "64", "forward", "TFLOP/s", "10", "5", "2.00")
    assert found.rows[1][-1] == "0.50"
    assert found.markdown().splitlines()[1] == "| --- | ---: | --- | --- | ---: | ---: | ---: |"


def test_geometric_mean_and_the_worst_cell(record):
    (ratio,) = table.ratios_of(record)
    assert ratio.geomean == pytest.approx(1.0) and ratio.least == 0.5 and ratio.cells == 2
    assert "least 0.500 (d64-bf16, seqlen 128)" in str(ratio)


def test_memory_is_compared_by_bytes():
    found = tuple(
        Measurement(contender=name, pass_name="step", peak_bytes=size)
        for name, size in (("flashgen", 2_000_000), ("eager", 50_000_000))
    )
    record = record_of([cell(64, {}), cell(128, {})], "memory")
    cells = tuple(
        CellRecord(**{f: getattr(c, f) for f in c.__struct_fields__} | {"measurements": found})
        for c in record.cells
    )
    found = table.table(record_of(cells, "memory"))
    assert found.rows[0][3:] == ("MB", "2", "50", "25.00")


def test_plots_need_matplotlib(record, tmp_path, monkeypatch):
    monkeypatch.setattr(plots.importlib, "import_module", _missing)
    with pytest.raises(FlashgenError, match=re.escape("pip install 'flashgen[bench]'")):
        plots.plot(record, tmp_path / "p", "png")


def _missing(name):
    raise ImportError(name)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots_are_the_same_each_time(record, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    files = plots.plot(record, tmp_path / "p", suffix)
    assert [f.name for f in files] == [f"p_forward_tflops.{suffix}", f"p_forward_ratio.{suffix}"]
    first = [f.read_bytes() for f in files]
    assert all(first) and first == [
        f.read_bytes() for f in plots.plot(record, files[0].parent / "p", suffix)
    ]
