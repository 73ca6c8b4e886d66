"""generator/plan/sm80.py: what ships fits every target, and what doesn't fit names its limit."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.arch import TARGETS, parse_target
from flashgen.generator.errors import PlanError
from flashgen.generator.plan import candidates, plan
from flashgen.generator.variant import PASSES, Variant, parse_key

SERVED = [t for t in TARGETS.values() if t.capability >= (8, 0)]


def make(key, pass_name="backward", target="sm80", **pins):
    return plan(parse_key(key), pass_name, parse_target(target), family="sm80", pins=pins)


@pytest.mark.parametrize("target", SERVED, ids=lambda t: t.name)
@pytest.mark.parametrize("pass_name", PASSES)
def test_every_size_fits_every_target(target, pass_name):
    for size in range(8, 257, 8):
        for size_v in {size, 8, 128, 256}:
            for bits in (0, 8, 16):
                variant = Variant(size, size_v, "bf16", True, bits, bits == 8)
                found = plan(variant, pass_name, target, family="sm80")
                assert found.smem_bytes <= target.max_smem_bytes
                assert found.registers_estimate <= found.max_registers
                assert found == next(iter(candidates(variant, pass_name, target, family="sm80")))


def test_buffers_do_not_overlap():
    for pass_name in PASSES:
        buffers = make("d72-bf16-causal-dropout", pass_name).smem
        for before, after in zip(buffers, buffers[1:], strict=False):
            assert before.offset_bytes + before.size_bytes <= after.offset_bytes
            assert after.offset_bytes % 128 == 0


@pytest.mark.parametrize(
    ("key", "pass_name", "pins", "message"),
    [
        ("d256-bf16", "forward", {"tile_n": 96}, "shared memory, sm86 allows 101376"),
        ("d64-bf16", "forward", {"tile_m": 100}, "tile_m in multiples of 64"),
        ("d64-bf16-dropout", "forward", {"tile_n": 48}, "blocks of 16x32"),
        ("d64-bf16-det", "backward", {"dq_tile_n": 24}, "dq_tile_n in multiples of 16"),
        ("d64-bf16-dropout-det", "backward", {"dq_tile_n": 16}, "dq_tile_n in multiples of 32"),
        (
            "d64-bf16",
            "backward",
            {"tile_n": 64},
            "tile_n = 16 * key_atoms * num_warps / head_splits",
        ),
        ("d64-bf16", "backward", {"stages": 2}, "expected one of"),
    ],
)
def test_a_pin_that_does_not_fit_names_the_limit(key, pass_name, pins, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        make(key, pass_name, "sm86", **pins)
