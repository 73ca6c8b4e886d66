"""Deterministic backwards of family sm80 whose thread blocks take turns, on emulated blocks."""

from __future__ import annotations

from functools import partial

import emulated
import ordered_adds
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.variant import parse_key
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

pytestmark = pytest.mark.nvcc
CPU = torch.device("cpu")
SHAPES = (Shape(2, 4, 2, 70, 203), Shape(1, 1, 1, 300, 130), Shape(1, 1, 1, 1, 1))
KEYS = (
    "d16-bf16-causal-det",  # one stage, two blocks a multiprocessor
    "d32-fp16-varlen-causal-window40x9-sink-dropout-det",
)
WAIT = "while (before <= turn_of(p, h, tile))"
TAKE = "= take_block(p);"


def emulate(key, folder, forward=False, **pins):
    variant, target = parse_key(key), TARGETS["sm90"]
    pins |= {"takes_turns": True}
    plans = [plan(variant, "backward", target, family="sm80", pins=pins)]
    if forward:
        plans.append(plan(variant, "forward", target, family="sm80"))
    return emulated.EmulatedKernel(plans, folder)


@pytest.mark.parametrize("key", KEYS)
def test_a_backward_in_turns_is_right(key, tmp_path):
    kernel = emulate(key, tmp_path, forward=True)
    for shape in SHAPES:
        for name, found in compare_call(kernel, shape, CPU, backward=True).items():
            assert found.ok, f"{name}, {shape}: {found}"


SMALL = {"tile_m": 32, "tile_n": 64, "num_warps": 4, "key_atoms": 1, "min_blocks": 1}
SMALL |= {"score_splits": 1, "num_stages": 2}
dq_of = partial(ordered_adds.dq_of, heads=2, tile_n=64)


def test_no_order_of_blocks_changes_a_bit(tmp_path):
    kernel = emulate("d16-bf16-det", tmp_path, **SMALL)
    expected = dq_of(kernel, 1, 0)
    for blocks, seed in ((10, 1), (10, 2), (3, 3)):
        assert torch.equal(dq_of(kernel, blocks, seed), expected), f"{blocks} blocks, seed {seed}"


def test_a_missing_wait_is_seen(tmp_path, monkeypatch):
    emulated.with_fault(monkeypatch, WAIT, "while (false)")
    kernel = emulate("d16-bf16-det", tmp_path, **SMALL)
    expected = dq_of(kernel, 1, 0)
    assert any(not torch.equal(dq_of(kernel, 10, seed), expected) for seed in range(1, 4))


def test_blocks_that_do_not_take_their_work_hang(tmp_path, monkeypatch):
    emulated.with_fault(monkeypatch, TAKE, "= gridDim.x - 1 - blockIdx.x;")
    with pytest.raises(RuntimeError, match="hangs"):
        dq_of(emulate("d16-bf16-det", tmp_path, **SMALL), 3, 0)
