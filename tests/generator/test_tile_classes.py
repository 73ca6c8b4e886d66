"""Tile classes are exact where the language promises it; masks of one's own become loop bounds."""

from __future__ import annotations

import pytest
import torch
from program_unit import Inputs, Unit

from flashgen.generator.ir import to_text
from flashgen.generator.program import program_for
from flashgen.generator.spec import load_specs

DOC = "captures: {doc: {dims: [seqlen_k], dtype: int32}}\n"
EXACT = {
    "prefix": "causal: false\ncaptures: {prefix: {dims: [batch], dtype: int64}}\n"
    "mask: 'kv_idx < prefix[b] or kv_idx <= q_idx'",
    "chunked": "mask: 'q_idx // 7 == kv_idx // 7'",
    "chunked-causal": "causal: true\nmask: 'q_idx // 8 == kv_idx // 8'",
    "streaming": "causal: true\nmask: 'kv_idx < 3 or q_idx - kv_idx < 9'",
    "streaming-runtime": "params: {W: {runtime: int}}\ncausal: true\n"
    "mask: 'kv_idx < 3 or q_idx - kv_idx <= W'",
    "document": DOC + "mask: 'doc[q_idx] == doc[kv_idx]'",
    "document-causal": DOC + "causal: true\nmask: 'doc[q_idx] == doc[kv_idx]'",
    "not-first-keys": "mask: 'not (kv_idx < 5)'",
    "padding": "captures: {prefix: {dims: [batch], dtype: int64}}\nmask: 'kv_idx < prefix[b]'",
    "global-local": "mask: 'q_idx < 2 or kv_idx < 2 or abs(q_idx - kv_idx) <= 4'",
    "dilated-window": "window: {left: 9, right: 0}\nmask: 'True or q_idx % 2 == 0'",
    "stair": "mask: 'kv_idx // 4 <= q_idx // 6'",
    "block-diffusion": "mask: 'q_idx // 5 >= kv_idx // 5'",
}
SIZES = (2, 2, 1, 37, 37)
TILES = ((4, 4), (8, 5), (3, 16), (16, 16), (37, 1), (1, 37))


def spec(text: str, dtype: str = "fp64"):
    (found,) = load_specs(f"head_dim: 64\ndtype: {dtype}\n{text}", "test.yaml")
    (variant,) = found.variants
    return variant


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    return Unit([spec(text) for text in EXACT.values()], tmp_path_factory.mktemp("exact"))


def given(seed: int) -> Inputs:
    g = torch.Generator().manual_seed(seed)
    batch, heads, _, q_len, kv_len = SIZES
    captures = {
        "bias": torch.zeros(heads, q_len, kv_len),
        "doc": torch.randint(0, 6, (kv_len,), generator=g).sort().values.int(),
        "prefix": torch.randint(0, kv_len + 1, (batch,), generator=g),
        "slope": torch.zeros(heads),
        "table": torch.zeros(9),
        "temperature": torch.zeros(()),
        "valid": torch.zeros(batch, kv_len, dtype=torch.bool),
        "weight": torch.zeros(kv_len),
    }
    return Inputs(SIZES, captures, {"W": seed * 5 - 3, "cap": 1.0})


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", EXACT)
def test_classes_are_exact(unit, name, seed):
    index, call = list(EXACT).index(name), given(seed)
    program = unit.programs[index]
    mask = unit.elements(index, call)["mask"].bool()
    if program.tile_test is None:
        return
    for rows, columns in TILES:
        classes = unit.tiles(index, call, rows, columns)
        for b, h, i, j in torch.cartesian_prod(*map(torch.arange, classes.shape)).tolist():
            tile = mask[b, h, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            expected = 2 if tile.all() else 1 if tile.any() else 0
            assert int(classes[b, h, i, j]) == expected, (program.mask_text, b, i, j, rows, columns)


BANDS = {
    "let: {dist: 'q_idx - kv_idx'}\nmask: '0 <= dist <= 9'": ("-9", "0"),
    "mask: 'kv_idx <= q_idx and q_idx - kv_idx < 5'": ("-4", "0"),
    "mask: 'not (kv_idx > q_idx or kv_idx < q_idx - 3)'": ("-3", "0"),
    "mask: 'kv_idx == q_idx + 2'": ("2", "2"),
    "mask: 'q_idx + kv_len - q_len >= kv_idx'": (None, "kv_len - q_len"),
    "params: {W: {runtime: int}}\nmask: 'q_idx - kv_idx <= W'": ("-W", None),
    "captures: {w: {dims: [num_heads], dtype: int32}}\nmask: 'kv_idx - w[h] < q_idx'": (
        None,
        "w[h] - 1",
    ),
    "window: {left: 4, right: 2}\nmask: 'kv_idx <= q_idx + 9 + kv_len - q_len'": (
        "kv_len - q_len - 4",
        "kv_len - q_len + 2",
    ),
}


@pytest.mark.parametrize("text", BANDS)
def test_masks_become_bands(text):
    program = program_for(spec(text, "bf16"))
    found = tuple(b and to_text(b) for b in (program.band.lower, program.band.upper))
    assert found == BANDS[text]
    assert program.tile_test is None


@pytest.mark.parametrize(
    "mask",
    ["2 * q_idx >= kv_idx", "q_idx + kv_idx < 9", "q_idx >= kv_idx or b == 1", "q_idx != kv_idx"],
)
def test_other_masks_are_tested_by_tile(mask):
    program = program_for(spec(f"mask: '{mask}'", "bf16"))
    assert program.band.lower is program.band.upper is None
    assert to_text(program.tile_test) == mask


def test_a_band_and_a_rest_are_told_apart():
    program = program_for(spec(DOC + "causal: true\nmask: 'doc[q_idx] == doc[kv_idx]'", "bf16"))
    assert to_text(program.band.upper) == "kv_len - q_len"
    assert to_text(program.tile_test) == "doc[q_idx] == doc[kv_idx]"
    assert [(b.name, b.side, b.dim) for b in program.bounds] == [
        ("doc_q", "q", 0),
        ("doc_kv", "kv", 0),
    ]
