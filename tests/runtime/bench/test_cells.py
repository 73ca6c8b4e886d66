from __future__ import annotations

import pytest
import torch

from flashgen.generator.errors import ArgumentError
from flashgen.generator.variant import parse_key
from flashgen.runtime.bench.cells import Cell, Sizes, cells_of
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.reference import Problem, attention
from flashgen.runtime.samples import Shape

CPU = torch.device("cpu")


def test_a_sweep_keeps_tokens_and_hidden_size():
    cells = cells_of([parse_key("d64-bf16"), parse_key("d72-bf16")], [512, 16384], Sizes(), 0.0)
    shapes = [(c.shape.batch, c.shape.num_heads, c.shape.seqlen_q) for c in cells]
    assert shapes == [(32, 32, 512), (1, 32, 16384), (32, 28, 512), (1, 28, 16384)]


def test_grouped_heads_must_divide():
    with pytest.raises(ArgumentError, match="divisor of the 16 heads of head_dim 128, got 5"):
        cells_of([parse_key("d128-bf16")], [64], Sizes(num_heads_kv=5), 0.0)


def test_packed_layouts_are_refused():
    with pytest.raises(ArgumentError, match="expected layout dense, got varlen"):
        cells_of([parse_key("d64-bf16-varlen")], [64], Sizes(), 0.0)


def test_flops_of_the_standard_cells():
    """4 b h s^2 d, half when causal, backward 2.5 times as many."""
    shape = Shape(2, 16, 16, 8192, 8192)
    full = Cell(parse_key("d128-bf16"), shape)
    assert full.flops("forward") == 4 * 2 * 16 * 8192**2 * 128
    causal = Cell(parse_key("d128-bf16-causal"), shape)
    assert causal.flops("forward") == full.flops("forward") / 2
    assert full.flops("backward") == 2.5 * full.flops("forward")
    assert full.flops("step") == 3.5 * full.flops("forward")


@pytest.mark.parametrize(
    "key", ["d16-fp32-window3x0", "d16-fp32-causal-window5x9", "d16-fp32-windowinfx2",
            "d16-fp32-windowrt", "d16-fp32-causaltl"],
)  # fmt: skip
@pytest.mark.parametrize("lengths", [(12, 12), (7, 12), (12, 7)])
def test_a_window_counts_what_it_shows(key, lengths):
    if key.endswith("tl") and lengths[0] == lengths[1]:
        return  # the convention: half
    cell = Cell(parse_key(key), Shape(1, 1, 1, *lengths), span=4)
    data = cell.inputs(CPU, 0)
    # with q = 0 every visible key has the same score, and lse is the logarithm of their number
    problem = Problem.of(cell.variant, data.q * 0, data.k, data.v, data.arguments)
    seen = attention(problem)[1].exp().round().sum().item()
    assert cell.flops("forward") == pytest.approx(4 * seen * 16)


def test_a_mask_of_ones_own_has_no_count():
    entry = Catalogue.load().find_one("document")
    assert Cell(entry.variant, Shape(1, 1, 1, 64, 64)).flops("forward") is None


def test_arguments_follow_the_span():
    catalogue = Catalogue.load()
    shape = Shape(2, 4, 4, 64, 64)
    doc = Cell(catalogue.find_one("document").variant, shape, span=16).inputs(CPU, 1).arguments
    assert doc["doc"].shape == (2, 64) and doc["doc"].dtype == torch.int32
    assert doc["doc"][1, 15:17].tolist() == [0, 1]
    prefix = Cell(catalogue.find_one("prefix-lm").variant, shape, span=16).inputs(CPU, 1).arguments
    assert prefix["prefix"].tolist() == [16, 16]
    window = Cell(parse_key("d16-fp32-windowrt"), shape, span=16).inputs(CPU, 1).arguments
    assert window == {"window_left": 16, "window_right": 0}
    slopes = Cell(parse_key("d16-fp32-alibi"), shape).inputs(CPU, 1).arguments["alibi_slopes"]
    assert slopes.tolist() == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8])


def test_sets_differ_and_repeat():
    cell = Cell(parse_key("d16-fp32"), Shape(1, 1, 1, 8, 8))
    one, again, two = (cell.inputs(CPU, seed).q for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.equal(one, two)
