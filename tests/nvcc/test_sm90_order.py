"""Deterministic backwards of family sm90: thread blocks add to dQ in the order of their keys."""

from __future__ import annotations

from functools import partial

import emulated
import ordered_adds
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

pytestmark = pytest.mark.nvcc
CPU = torch.device("cpu")
WAIT = "while (ld_acquire(p.added + tile) != before + 1)"
dq_of = partial(ordered_adds.dq_of, heads=1, tile_n=128)


PERSISTENT = {"persistent_blocks": True}


def emulate(key, folder, passes=PASSES, pins=None):
    plans = [plan(parse_key(key), name, TARGETS["sm90"], family="sm90") for name in passes]
    plans[-1] = plans[-1].pinned(pins or {}).check()
    assert plans[-1].adds_in_order
    return emulated.EmulatedKernel(plans, folder)


def test_masks_scores_and_dropout_are_right(tmp_path):
    kernel = emulate("d72-bf16-window90x9-sink-dropout-det", tmp_path)
    for late, blocks in ((True, 1), (False, 7)):
        kernel.work_late(late)
        kernel.run_at_once(blocks, 1)
        found = compare_call(kernel, Shape(1, 2, 1, 113, 403), CPU, backward=True)
        wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
        assert not wrong, wrong


def test_no_order_of_blocks_changes_a_bit(tmp_path, monkeypatch):
    kernel = emulate("d16-bf16-det", tmp_path / "right", PASSES[1:])
    expected = dq_of(kernel, 1, 0)
    schedules = ((5, 1), (5, 2), (3, 3))
    for blocks, seed in schedules:
        assert torch.equal(dq_of(kernel, blocks, seed), expected), f"{blocks} blocks, seed {seed}"

    emulated.with_fault(monkeypatch, WAIT, "while (false)")
    kernel = emulate("d16-bf16-det", tmp_path / "without_a_wait", PASSES[1:])
    assert any(not torch.equal(dq_of(kernel, *schedule), expected) for schedule in schedules)


def test_blocks_that_go_from_tile_to_tile_wait_for_lower_ones(tmp_path):
    """Three of them, as many as the emulated device has at once, and more tiles than those."""
    kernel = emulate("d16-bf16-causal-det", tmp_path, pins=PERSISTENT)
    shape = Shape(1, 2, 1, 300, 700)
    expected = None
    for late, seed in ((True, 1), (False, 2), (False, 3)):
        kernel.work_late(late)
        kernel.run_at_once(3, seed)
        found = compare_call(kernel, shape, CPU, backward=True)
        wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
        assert not wrong, wrong
        bits = dq_of(kernel, 3, seed)
        expected = bits if expected is None else expected
        assert torch.equal(bits, expected), f"seed {seed}"
