"""`flashgen explain`: spec, program, gradients and tiles, as text, JSON and PNG."""

from __future__ import annotations

import builtins
import json

import pytest

from flashgen.cli import exits
from flashgen.generator.program import program_for
from flashgen.runtime.catalogue import Catalogue

MINE = """\
# first
- name: one
  head_dim: 8
  dtype: fp32

# second
- name: two
  head_dim: 16
  dtype: fp32
  captures:
    slope: {dims: [num_heads], dtype: fp32, grad: true}
  params: {cap: {runtime: float}}
  let: {distance: "q_idx - kv_idx"}
  mask: "kv_idx <= q_idx"
  score: "cap * tanh((score - slope[h] * distance) / cap)"
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    return file


def explained(run, *arguments):
    result = run("explain", *arguments)
    assert result.exit_code == exits.OK, result.output
    return result.stdout


def test_all_parts_of_a_spec(run, mine):
    text = explained(run, f"{mine}:two", "--seqlen-q", 64, "--tile", 16)
    for part in (
        "slope: fp32 (num_heads), with a gradient",
        "cap: float, at run time",
        "distance = q_idx - kv_idx",
        "kv_idx <= q_idx",
        "cap * tanh((score - slope[h] * float(distance)) / cap)",
        "of score: dscore",
        "of slope[h]: ",
        "kv_idx - q_idx <= 0",
        "37.5% of the work is skipped",
    ):
        assert part in text, part
    lines = text.splitlines()
    assert [line.strip() for line in lines[-4:]] == ["+...", "#+..", "##+.", "###+"]
    assert "name: two" in text and "name: one" not in text


def test_json_has_what_the_text_has(run, mine):
    (data,) = json.loads(explained(run, f"{mine}:two", "--json", "--seqlen-k", 32, "--tile", 16))
    assert data["captures"] == [
        {"name": "slope", "dims": ["num_heads"], "dtype": "fp32", "grad": True}
    ]
    assert data["params"] == [{"name": "cap", "type": "float"}]
    assert data["mask"] == "kv_idx <= q_idx" and data["tile_test"] is None
    assert data["tiles"]["map"] == ["+.", "#+"] and data["tiles"]["empty"] == 0.25
    assert set(data["gradients"]) == {"score", "slope[h]"}


def test_a_name_of_several_explains_each(run):
    text = explained(run, "stable-diffusion", "--seqlen-q", 128)
    assert all(f"{key}\n" in text for key in ("d40-fp16", "d80-fp16", "d160-fp16"))
    assert "every query sees every key" in text and "score, unchanged" in text


def test_a_key_that_no_spec_lists(run):
    text = explained(run, "d8-fp32-causal", "--seqlen-q", 300, "--seqlen-k", 400)
    assert "none lists it" in text and "300 queries (down), 400 keys (across)" in text


@pytest.mark.parametrize("spec", Catalogue.load().specs, ids=lambda spec: spec.name)
def test_every_shipped_spec_is_explained(run, spec):
    text = explained(run, spec.name, "--seqlen-q", 256)
    program = program_for(spec.variants[0])
    assert ("tile test     none" in text) == (program.tile_test is None)


def test_numbers_of_the_example(run):
    narrow = explained(run, "sliding-window", "--set", "window_left=0", "--tile", 256)
    assert narrow.rstrip().endswith(".......+")
    bad = run("explain", "sliding-window", "--set", "window_left")
    assert bad.exit_code == exits.BAD_INPUT and "expected NAME=NUMBER" in bad.stderr
    unknown = run("explain", "sliding-window", "--set", "window=3")
    assert unknown.exit_code == exits.BAD_INPUT and "got 'window'" in unknown.stderr


def test_tiles_that_intervals_cannot_tell_are_said(run):
    """Ancestors are a matrix: some tiles have none, which no interval shows."""
    arguments = ("--seqlen-q", 256, "--tile", 32)
    assert "tiles are empty or full, but intervals can't tell" in explained(run, "tree", *arguments)
    assert "intervals" not in explained(run, "document", *arguments)


def test_queries_and_keys_that_share_a_capture_are_as_many(run):
    result = run("explain", "document", "--seqlen-q", 100, "--seqlen-k", 200)
    assert result.exit_code == exits.BAD_INPUT
    assert "reads doc at both, got 100 and 200" in result.stderr


def test_without_a_compiler_tiles_are_counted(run, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    file = tmp_path / "new.yaml"
    file.write_text('head_dim: 8\ndtype: fp32\nmask: "q_idx // 37 == kv_idx // 37"\n')
    result = run("explain", file, "--seqlen-q", 256)
    assert result.exit_code == exits.OK and "note: tiles are counted" in result.stderr
    assert "0.0% of the work is skipped" in result.stdout


def test_png(run, tmp_path):
    from PIL import Image

    from flashgen.runtime.picture import CLASS_COLORS

    file = tmp_path / "tiles.png"
    assert str(file) in explained(run, "document-causal", "--png", file)
    with Image.open(file) as image:
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}
    assert set(CLASS_COLORS) <= colors
    several = run("explain", "vision", "--png", file)
    assert several.exit_code == exits.BAD_INPUT and "one of 3" in several.stderr


def test_png_without_pillow_says_what_to_install(run, tmp_path, monkeypatch):
    plain_import = builtins.__import__

    def without_pillow(name, *args, **kwargs):
        if name == "PIL":
            raise ImportError(name)
        return plain_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    result = run("explain", "d8-fp32", "--png", tmp_path / "x.png")
    assert result.exit_code != exits.OK and "flashgen[docs]" in result.stderr
    assert not (tmp_path / "x.png").exists()


def test_png_that_cannot_be_written(run, tmp_path):
    result = run("explain", "d8-fp32", "--png", tmp_path / "none" / "x.png")
    assert result.exit_code != exits.OK and "expected to write a PNG" in result.stderr
