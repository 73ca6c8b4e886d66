"""Classes that kernels give to tiles, against counted ones, for every mask of the catalogue."""

from __future__ import annotations

import pytest
import torch

from flashgen.generator.program import program_for
from flashgen.generator.spec import load_specs
from flashgen.runtime.captures import signature_of
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.examples import Sizes, example_for
from flashgen.runtime.tile_classes import kernel_classes
from flashgen.runtime.tilemap import EMPTY, FULL, tile_map

TESTED = {
    entry.spec.name: entry.variant
    for entry in Catalogue.load().entries
    if program_for(entry.variant).tile_test is not None
}
INEXACT = {
    "block-diffusion", "dilated", "neighborhood", "shared-prefix", "strided", "transfusion", "tree",
}  # fmt: skip
"""Masks that intervals see through in part: 2-D ones, every n-th key, a matrix of bools, and two
halves of a tile that are full for two reasons."""


@pytest.mark.parametrize("name", sorted(TESTED))
def test_the_catalogue(name):
    """Sound at any size and tile; exact where the mask is one that intervals see through."""
    variant = TESTED[name]
    program = program_for(variant)
    for seqlen_q, seqlen_k, tile_m, tile_n in ((200, 200, 16, 16), (97, 203, 7, 24)):
        if signature_of(variant).paired:
            seqlen_k = seqlen_q
        sizes = Sizes(seqlen_q, seqlen_k)
        example = example_for(program, sizes)
        counted = tile_map(program, example, sizes, tile_m, tile_n, head=1).counted
        found = kernel_classes(variant, example, sizes, tile_m, tile_n, head=1)
        assert found.shape == counted.shape
        assert (counted[found == EMPTY] == EMPTY).all()
        assert (counted[found == FULL] == FULL).all()
        if name not in INEXACT:
            assert torch.equal(found, counted)


def test_a_band_needs_no_classes():
    (spec,) = load_specs("head_dim: 8\ndtype: fp32\ncausal: true\n", "x.yaml")
    sizes = Sizes(64, 64)
    example = example_for(program_for(spec.variants[0]), sizes)
    assert kernel_classes(spec.variants[0], example, sizes, 16, 16) is None


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "fp16", "bf16", "fp32", "fp64"])
def test_captures_of_every_dtype(dtype):
    """Their bounds have the layout that the hooks read."""
    read = "c[kv_idx]" if dtype == "bool" else "c[kv_idx] > 0"
    text = (
        f"head_dim: 8\ndtype: fp32\ncaptures: {{c: {{dims: [seqlen_k], dtype: {dtype}}}}}\n"
        f"mask: '{read}'\n"
    )
    (spec,) = load_specs(text, "x.yaml")
    program, sizes = program_for(spec.variants[0]), Sizes(32, 64)
    example = example_for(program, sizes)
    values = torch.arange(64) >= 40  # a partial tile between an empty and a full one
    captures = {"c": values.to(example.captures["c"].dtype)}
    example = type(example)(captures, example.params)
    found = kernel_classes(spec.variants[0], example, sizes, 16, 16)
    assert found.tolist() == [[0, 0, 1, 2]] * 2
