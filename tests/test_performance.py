"""docs/performance.md and README say what the records say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from flashgen.runtime.bench.record import Record, read_record
from flashgen.runtime.bench.table import ratios_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def maker():
    path = ROOT / "docs" / "make_performance.py"
    spec = importlib.util.spec_from_file_location("make_performance", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_records_tables(maker):
    text = maker.PAGE.read_text("utf-8")
    assert text.count("<!-- record: ") == len(maker.BLOCK.findall(text)) > 0
    assert maker.page_text(text) == text, "run: python docs/make_performance.py"


def test_the_pages_pictures_are_there(maker):
    shown = set(maker.PICTURE.findall(maker.PAGE.read_text("utf-8")))
    assert shown == {file.name for file in maker.PICTURES.iterdir()}


def test_readme_has_the_geometric_means(maker):
    record = read_record(maker.RESULTS / "sm80_sweep_h200.json")
    assert isinstance(record, Record) and len(record.cells) == 36
    means = {r.pass_name: r.geomean for r in ratios_of(record) if r.peer == "flash"}
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    forward, backward = means["forward"], means["backward"]
    assert f"{forward:.2f} of FlashAttention-2's forward and {backward:.2f} of its" in text
    record = read_record(maker.RESULTS / "sm90_sweep_h200.json")
    assert isinstance(record, Record) and len(record.cells) == 36
    means = {(r.pass_name, r.peer): f"{r.geomean:.2f}" for r in ratios_of(record)}
    fa3, fa4, cudnn = (means["forward", peer] for peer in ("fa3", "fa4", "cudnn"))
    assert (
        f"{fa3} of FlashAttention-3's, {fa4} of FlashAttention-4's and {cudnn} of cuDNN's" in text
    )
    fa4, cudnn = (means["backward", peer] for peer in ("fa4", "cudnn"))
    assert f"its backward at {fa4} of FlashAttention-4's and {cudnn} of cuDNN's" in text
