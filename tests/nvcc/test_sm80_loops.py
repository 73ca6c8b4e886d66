"""Loops of family sm80 that the tuner alone tries, on an emulated thread block.

The emulator's cp.async is over at once: that a wait is missing is not seen here.
"""

from __future__ import annotations

import emulated
import growing_scores
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import parse_key
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

pytestmark = pytest.mark.nvcc
CPU = torch.device("cpu")
SHAPES = (Shape(2, 4, 2, 113, 203), Shape(1, 3, 1, 300, 130), Shape(1, 1, 1, 1, 1))
STAGED = {"num_stages": 2, "paced": True, "short_rows": True, "rescale": "seldom"}


def emulate(key, folder, **pins):
    chosen = plan(parse_key(key), "forward", TARGETS["sm90"], family="sm80", pins=pins)
    return emulated.EmulatedKernel([chosen], folder)


@pytest.mark.parametrize(
    ("key", "pins"),
    [
        ("d128-bf16-causal", STAGED),
        ("d64-fp16-causal-dropout", {"paced": True, "short_rows": True, "rescale": "joint"}),
    ],
)
def test_a_loop_is_right(key, pins, tmp_path):
    kernel = emulate(key, tmp_path, **pins)
    for shape in SHAPES:
        for name, found in compare_call(kernel, shape, CPU, backward=False).items():
            assert found.ok, f"{name}, {shape}: {found}"


@pytest.mark.parametrize(
    ("fields", "pins"),
    [
        # tiles of every class; some in between are empty
        ('mask: "abs(q_idx - kv_idx) % 256 < 40"', STAGED),
        ('mask: "abs(q_idx - kv_idx) % 256 < 40"', STAGED | {"num_stages": 1}),
        ("layout: varlen\ncausal: true\nwindow: {left: 40, right: 9}", STAGED),
    ],
)
def test_a_walk_loads_ahead(fields, pins, tmp_path):
    (spec,) = load_specs(f"head_dim: 64\ndtype: bf16\n{fields}\n", "walk.yaml")
    pins = pins | {"tile_n": 64}
    chosen = plan(spec.variants[0], "forward", TARGETS["sm90"], family="sm80", pins=pins)
    kernel = emulated.EmulatedKernel([chosen], tmp_path)
    for shape in (*SHAPES, Shape(1, 2, 1, 20, 700)):
        for name, found in compare_call(kernel, shape, CPU, backward=False).items():
            assert found.ok, f"{name}, {shape}: {found}"


def test_a_backward_of_few_addresses_is_right(tmp_path):
    variant, target = parse_key("d64-bf16-causal"), TARGETS["sm90"]
    pins = {"short_addresses": True, "late_copies": True, "tile_m": 32, "num_warps": 8}
    pins |= {"key_atoms": 1, "min_blocks": 1, "score_splits": 2, "num_stages": 2}
    pins |= {"head_sections": 32}
    plans = [
        plan(variant, "forward", target, family="sm80"),
        plan(variant, "backward", target, family="sm80", pins=pins),
    ]
    kernel = emulated.EmulatedKernel(plans, tmp_path)
    for shape in SHAPES:
        for name, found in compare_call(kernel, shape, CPU).items():
            assert found.ok, f"{name}, {shape}: {found}"


def test_scores_that_grow_are_rescaled(tmp_path):
    kernel = emulate("d64-fp16", tmp_path, tile_n=64, **STAGED)
    for case, error in growing_scores.errors(kernel, 64, torch.float16, CPU):
        assert error < growing_scores.TOLERANCE[torch.float16], f"{case}: {error}"


def test_a_missing_rescale_is_seen(tmp_path, monkeypatch):
    replaced = emulated.with_fault(monkeypatch, "*= rescale[m][i % 4 / 2];", ";")
    kernel = emulate("d64-fp16", tmp_path, tile_n=64, **STAGED)
    found = [error for _, error in growing_scores.errors(kernel, 64, torch.float16, CPU)]
    assert sum(replaced) == 1
    assert max(found) > growing_scores.TOLERANCE[torch.float16]
