"""generator/plan/sm80.py: what ships fits every target, and what doesn't fit names its limit."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.arch import TARGETS, parse_target
from flashgen.generator.errors import PlanError
from flashgen.generator.plan import candidates, plan
from flashgen.generator.render import render
from flashgen.generator.spec import load_specs
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
        (
            "d64-bf16",
            "backward",
            {"num_stages": 1, "late_copies": True},
            "num_stages above 1 for late_copies",
        ),
        ("d64-bf16", "backward", {"takes_turns": True}, "expected a deterministic variant"),
        ("d64-bf16", "forward", {"rescale": "never"}, "expected one of rows, joint, seldom"),
        ("d64-bf16", "forward", {"num_stages": 3}, "two stages at most"),
        ("d64-bf16-causal-alibi", "forward", {"paced": True}, "no pacing where a program scores"),
        ("d72-bf16", "forward", {"short_rows": True}, "head sizes in multiples of 64"),
    ],
)
def test_a_pin_that_does_not_fit_names_the_limit(key, pass_name, pins, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        make(key, pass_name, "sm86", **pins)


@pytest.mark.parametrize("size", [96, 128])
def test_a_mask_of_positions_alone_has_the_plan_of_no_mask(size):
    """In two parts its backward would read K and V twice a step: 168 ldmatrix at d128, not 136."""
    spec = f'head_dim: {size}\ndtype: bf16\nmask: "q_idx // 3 - kv_idx // 5 < kv_len + q_len"\n'
    (variant,) = load_specs(spec, "free.yaml")[0].variants
    masked = plan(variant, "backward", parse_target("sm90"), family="sm80")
    plain = make(f"d{size}-bf16", target="sm90")
    assert masked.walks_tiles and not plain.walks_tiles
    assert [getattr(masked, n) for n in masked.pins] == [getattr(plain, n) for n in plain.pins]


ALTERNATIVES = [
    ("d128-bf16-causal", "forward", {"tile_m": 256, "num_warps": 8}),
    ("d256-bf16", "forward", {"tile_m": 128, "num_warps": 8, "key_splits": 1}),
    ("d256-bf16", "forward", {"tile_m": 128, "num_stages": 2, "paced": True}),
    ("d128-bf16-causal-alibi", "forward", {"rescale": "seldom", "short_rows": True}),
    ("d80-bf16-causal", "backward", {"key_atoms": 2, "head_splits": 2, "score_splits": 1}),
    ("d64-bf16-det", "backward", {"dq_tile_n": 64}),
    ("d128-bf16-causal-det", "backward", {"takes_turns": True}),
    ("d256-bf16", "backward", {"head_splits": 4, "short_addresses": True, "late_copies": True}),
]


@pytest.mark.parametrize(("key", "pass_name", "pins"), ALTERNATIVES)
def test_alternatives_come_behind_what_ships_and_render(key, pass_name, pins):
    found = list(candidates(parse_key(key), pass_name, parse_target("sm90"), family="sm80"))
    assert len(set(found)) == len(found)
    assert found[0] == make(key, pass_name, "sm90")
    chosen = [one for one in found[1:] if all(getattr(one, n) == v for n, v in pins.items())]
    assert chosen
    for one in chosen:
        text = render(one).text
        assert f"kTileM = {one.tile_m};" in text and f"kNumWarps = {one.num_warps};" in text


def test_a_dq_kernel_that_does_not_fit_is_no_candidate():
    with pytest.raises(PlanError, match="the dQ kernel needs"):
        make("d256-bf16-det", target="sm86", dq_tile_n=64)
