"""Tile maps against masks whose tiles are known, and examples that suit every program."""

from __future__ import annotations

import pytest
import torch

from flashgen.generator.errors import SpecError
from flashgen.generator.program import program_for
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import parse_key
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.examples import Sizes, example_for
from flashgen.runtime.tilemap import mask_of, score_of, tile_map


def program_of(text):
    (spec,) = load_specs(f"head_dim: 8\ndtype: fp32\n{text}", "x.yaml")
    return program_for(spec.variants[0])


def map_of(program, seqlen_q, seqlen_k, tile=16, numbers=None):
    sizes = Sizes(seqlen_q, seqlen_k)
    return tile_map(program, example_for(program, sizes, numbers), sizes, tile, tile)


def test_causal():
    """Whole tiles; then a short last tile, and more keys than queries."""
    found = map_of(program_for(parse_key("d8-fp32-causal")), 64, 64)
    assert found.lines() == ["+...", "#+..", "##+.", "###+"]
    assert [found.share(n) for n in range(3)] == [6 / 16, 4 / 16, 6 / 16]
    assert found.visible_share == pytest.approx(65 / 128)
    assert map_of(program_for(parse_key("d8-fp32-causal")), 20, 36).lines() == ["#+.", "##+"]


def test_no_mask_is_full_and_no_key_is_empty():
    assert map_of(program_of(""), 20, 33).lines() == ["###", "###"]
    assert map_of(program_of('mask: "kv_idx < 0"'), 20, 33).lines() == ["...", "..."]


def test_a_short_last_tile_counts_by_its_elements():
    found = map_of(program_of('mask: "kv_idx >= 16"'), 17, 20)
    assert found.lines() == [".#", ".#"]
    assert found.visible_share == pytest.approx(4 / 20)


def test_chunks_of_rows_do_not_matter(monkeypatch):
    program = program_of('mask: "(q_idx ^ kv_idx) % 3 == 0"')
    whole = map_of(program, 50, 70).visible
    monkeypatch.setattr("flashgen.runtime.tilemap._CHUNK_ELEMS", 100)
    assert torch.equal(map_of(program, 50, 70).visible, whole)


def test_numbers_replace_params_and_captures():
    program = program_of(
        "params: {n: {runtime: int}}\ncaptures: {m: {dims: [batch], dtype: int32}}\n"
        'mask: "m[b] <= kv_idx < n"'
    )
    assert map_of(program, 16, 64, numbers={"n": 48, "m": 16}).lines() == [".##."]
    with pytest.raises(SpecError, match=r"capture or run-time param \(m, n\), got 'k'"):
        map_of(program, 16, 64, numbers={"k": 1})


@pytest.mark.parametrize("entry", Catalogue.load().entries, ids=lambda entry: entry.spec.name)
def test_every_catalogue_program_has_an_example(entry):
    """Its mask and score can be evaluated; a mask leaves something visible and finite scores."""
    program = program_for(entry.variant)
    sizes = Sizes(64, 64)
    example = example_for(program, sizes)
    visible = mask_of(program, example, sizes, range(64), range(64))
    scores = score_of(program, example, sizes, range(64), range(64))
    assert visible.shape == scores.shape == (64, 64)
    assert visible.any() and scores[visible].isfinite().all()
    part = mask_of(program, example, sizes, range(0, 64, 8), range(3, 64, 5))
    assert torch.equal(part, visible[::8, 3::5])
