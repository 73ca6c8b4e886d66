"""Random programs as g++ compiles them, against the torch interpreter of the same IR."""

from __future__ import annotations

import random

import pytest
import torch
from program_unit import MAX_SITES, Inputs, Unit, inputs, scores
from strategies import random_program

from flashgen.generator.variant import Variant
from flashgen.runtime.evaluate import Scope, evaluate

COUNT = 150
SIZES = ((2, 4, 2, 13, 13), (1, 2, 2, 40, 40))
TILES = ((4, 4), (7, 3), (16, 16), (5, 40))


@pytest.fixture(scope="module")
def variants():
    rng = random.Random(20240607)
    bodies = [random_program(rng, depth=2 + i % 3) for i in range(COUNT)]
    presets = [{}, {"causal": True}, {"causal": "top_left"}, {"softcap": 2.0}]
    return [
        Variant(64, 64, "fp64", body=body, **presets[i % len(presets)])
        for i, body in enumerate(bodies)
    ]


@pytest.fixture(scope="module")
def unit(variants, tmp_path_factory):
    return Unit(variants, tmp_path_factory.mktemp("programs"))


def scope_of(given: Inputs, score, captures) -> Scope:
    batch, heads, heads_kv, q_len, kv_len = given.sizes
    return Scope.of_block(
        range(batch), range(heads), range(q_len), range(kv_len),
        sizes=(q_len, kv_len, heads, heads_kv),
        score=score, captures=captures, params=given.params,
    )  # fmt: skip


def whole(value: torch.Tensor, given: Inputs) -> torch.Tensor:
    batch, heads, _, q_len, kv_len = given.sizes
    return value.broadcast_to((batch, heads, q_len, kv_len))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("index", range(COUNT))
def test_hooks_mean_the_program(unit, index, sizes):
    program, given = unit.programs[index], inputs(index, sizes)
    found = unit.elements(index, given)
    shape = found["mask"].shape
    score = scores(shape).requires_grad_()
    leaves = {
        name: t.double().requires_grad_() if t.is_floating_point() else t
        for name, t in given.captures.items()
    }
    scope = scope_of(given, score, leaves)
    if program.mask is not None:
        expected = whole(evaluate(program.mask, scope), given)
        assert torch.equal(found["mask"].bool(), expected), program.mask_text
    if program.score is None:
        return
    expected = whole(evaluate(program.score, scope), given).double()
    check(found["score"], expected.detach(), program)
    if expected.requires_grad:
        expected.sum().backward()
    zero = torch.zeros(shape, dtype=torch.float64)
    check(found["dscore"], zero if score.grad is None else score.grad, program)
    for capture in {site.capture.name for site in program.gradients}:
        gradient = torch.zeros(leaves[capture].numel(), dtype=torch.float64)
        for i, site in enumerate(program.gradients):
            if site.capture.name == capture:
                places = found["places"][..., i].flatten()
                inside = places >= 0
                gradient.index_add_(0, places[inside], found["sites"][..., i].flatten()[inside])
        known = leaves[capture].grad
        known = torch.zeros_like(leaves[capture]) if known is None else known
        check(gradient, known.flatten(), program, 1e-8)
    assert len(program.gradients) <= MAX_SITES


def check(found, expected, program, tolerance=1e-9):
    close = torch.isclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    where = (~close).nonzero()
    assert close.all(), (program.score_text, where[0].tolist(), len(where))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("index", range(COUNT))
def test_tile_classes_are_sound(unit, index, sizes):
    program, given = unit.programs[index], inputs(index, sizes)
    if program.tile_test is None:
        return
    mask = unit.elements(index, given)["mask"]
    for rows, columns in TILES:
        classes = unit.tiles(index, given, rows, columns)
        for b, h, i, j in torch.cartesian_prod(*map(torch.arange, classes.shape)).tolist():
            tile = mask[b, h, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            claimed = int(classes[b, h, i, j])
            where = (program.mask_text, b, h, i, j, rows, columns)
            assert claimed != 0 or not tile.any(), where
            assert claimed != 2 or tile.all(), where


@pytest.mark.parametrize("sizes", [(2, 4, 2, 13, 13), (2, 2, 2, 9, 17)])
@pytest.mark.parametrize("index", range(0, COUNT, 2))
def test_loop_bounds_hold_every_visible_pair(unit, index, sizes):
    program, given = unit.programs[index], inputs(index, sizes)
    mask = unit.elements(index, given)["mask"].bool()
    for tile in (1, 4, 16):
        found = unit.ranges(index, given, tile)
        for b, h in torch.cartesian_prod(*map(torch.arange, mask.shape[:2])).tolist():
            lines = [*mask[b, h].split(tile), *mask[b, h].t().split(tile)]
            for (visible, full), rows in zip(found[b, h].tolist(), lines, strict=True):
                check_range(rows, visible, full, program)


def check_range(rows, visible, full, program):
    """A tile's lines against its two ranges; both are exact where the band is all of the mask."""
    some, every = (set(m.nonzero().flatten().tolist()) for m in (rows.any(0), rows.all(0)))
    where = (program.mask_text, visible, full)
    assert some <= set(range(*visible)), where
    if program.tile_test is None:
        assert set(range(*full)) == every, where
        assert not some or set(range(*visible)) == some, where
