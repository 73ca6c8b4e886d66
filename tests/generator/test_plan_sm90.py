"""generator/plan/sm90.py: what ships fits the target, and what doesn't fit names its limit."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.arch import TARGETS
from flashgen.generator.errors import PlanError, TargetError
from flashgen.generator.plan import candidates, plan
from flashgen.generator.plan.sm90_untried import untried
from flashgen.generator.variant import Variant, parse_key

SM90 = TARGETS["sm90"]
LAUNCH_REGISTERS = 65_536


def make(key, **pins):
    return plan(parse_key(key), "forward", SM90, pins=pins)


def test_every_size_fits():
    for size in range(8, 257, 8):
        for size_v in {size, 8, 128, 256}:
            for bits in (0, 8, 16):
                variant = Variant(size, size_v, "bf16", True, bits)
                found = plan(variant, "forward", SM90)
                assert found.family == "sm90"
                assert found.smem_bytes <= SM90.max_smem_bytes
                assert found == next(iter(candidates(variant, "forward", SM90)))


def test_registers_are_those_of_the_launch():
    for tile_m, teams in ((64, 1), (128, 1), (192, 1), (64, 2), (128, 2)):
        for key in ("d32-bf16", "d32-bf16-blockmask128x128"):
            pins = {"tile_m": tile_m, "tile_n": 32, "num_stages": 2, "teams": teams}
            (config,) = make(key, **pins).configs
            groups = config.num_groups * teams
            start = LAUNCH_REGISTERS // (128 * (groups + 1)) // 8 * 8
            after = config.producer_registers + groups * config.consumer_registers
            assert after <= start * (groups + 1)
            for registers in (config.producer_registers, config.consumer_registers):
                assert registers % 8 == 0 and 24 <= registers <= 256


def test_buffers_do_not_overlap():
    buffers = make("d72-bf16-causal-blockmask64x64-dropout").smem
    for before, after in zip(buffers, buffers[1:], strict=False):
        assert before.offset_bytes + before.size_bytes <= after.offset_bytes
    tiles = [buffer for buffer in buffers if buffer.name in ("q", "k", "v")]
    assert all(buffer.offset_bytes % 1024 == 0 for buffer in tiles)


def test_a_call_chooses_between_configurations():
    found = make("d64-bf16-causal")
    assert [str(tiles) for tiles in found.choice] == [
        "192x128, 3 stages",
        "128x64, 4 stages, 2 teams",
    ]
    assert [config.tile_m for config in found.configs] == [192, 128]
    assert all(config.smem_bytes <= SM90.max_smem_bytes for config in found.configs)
    assert len({config.name for config in found.configs}) == 2
    assert found.describe()["choice"] == [str(tiles) for tiles in found.choice]
    pinned = make("d64-bf16-causal", tile_n=96)
    assert not pinned.choice and [config.tile_n for config in pinned.configs] == [96]


def test_teams_have_shared_memory_of_their_own():
    one = make("d64-bf16", tile_m=128, tile_n=64, num_stages=4)
    two = make("d64-bf16", tile_m=128, tile_n=64, num_stages=4, teams=2)
    (config,) = two.configs
    assert config.team_bytes % 1024 == 0 and one.smem_bytes <= config.team_bytes
    assert two.smem_bytes == config.team_bytes + one.smem_bytes


def test_the_tuner_tries_what_no_default_has():
    for key in ("d64-bf16", "d192-bf16-causal", "d256-bf16-causal", "d64-bf16-varlen-causal"):
        found = list(candidates(parse_key(key), "forward", SM90))
        assert len(found) == len(set(found))
        new = {str(tiles) for (tiles,) in untried(parse_key(key))}
        assert new and new <= {str(plan.configs[0].tiles) for plan in found[1:]}
    assert not list(untried(parse_key("d64-bf16-softcap5")))


def test_another_family_where_it_is_asked_for():
    assert plan(parse_key("d64-bf16"), "forward", SM90, family="sm80").family == "sm80"
    with pytest.raises(TargetError, match="can't run on target sm80"):
        plan(parse_key("d64-bf16"), "forward", TARGETS["sm80"], family="sm90")


@pytest.mark.parametrize(
    ("key", "pins", "message"),
    [
        ("d256-bf16", {"tile_n": 128}, "registers a thread, 2 warpgroups have 232"),
        ("d128-bf16", {"tile_m": 192, "tile_n": 96}, "3 warpgroups have 160"),
        ("d64-bf16", {"tile_m": 256}, "tile_m 64, 128 or 192"),
        ("d64-bf16-dropout", {"tile_n": 80}, "tile_n in multiples of 32"),
        ("d64-bf16", {"num_stages": 7}, "shared memory, sm90 allows 232448"),
        ("d64-bf16", {"stages": 2}, "expected one of"),
        ("d64-bf16", {"teams": 2}, "up to 4 warpgroups that compute, got 2 teams of 3"),
        ("d64-bf16", {"q_slots": 3}, "expected 1 or 2 q_slots, got 3"),
    ],
)
def test_a_pin_that_does_not_fit_names_the_limit(key, pins, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        make(key, **pins)
