"""generator/plan/cpu.py: what ships, what can be pinned, and what is refused with its limit."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.arch import parse_target
from flashgen.generator.errors import PlanError
from flashgen.generator.plan import candidates, plan
from flashgen.generator.render import environment, render
from flashgen.generator.variant import PASSES, parse_key

CPU = parse_target("cpu")
HEAD_DIMS = range(8, 257, 8)


def make(key, pass_name="forward", **pins):
    return plan(parse_key(key), pass_name, CPU, pins=pins)


@pytest.mark.parametrize("pass_name", PASSES)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_every_head_dim_has_a_plan_that_renders(dtype, pass_name):
    for size in HEAD_DIMS:
        rendered = render(make(f"d{size}-{dtype}-causal-dropout", pass_name))
        assert f"kHeadDim = {size};" in rendered.text


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_packed_rows_are_an_odd_number_of_cache_lines(dtype):
    for size in HEAD_DIMS:
        chosen = make(f"d{size}-{dtype}")
        row_bytes = chosen.stride_qk * chosen.accumulator_bytes
        assert row_bytes % 128 == 64 and chosen.stride_qk >= size
        assert row_bytes - size * chosen.accumulator_bytes < 128


@pytest.mark.parametrize("key", ["d64-fp32", "d128v64-bf16-causal-dropout", "d256-fp64-dropout16"])
@pytest.mark.parametrize("pass_name", PASSES)
def test_candidates_are_legal_and_begin_with_the_shipped_plan(key, pass_name):
    found = list(candidates(parse_key(key), pass_name, CPU))
    assert found[0] == make(key, pass_name)
    assert len({(c.tile_m, c.tile_n, c.vector_bytes) for c in found}) == len(found) > 4
    for candidate in found:
        candidate.check()


@pytest.mark.parametrize(
    ("key", "pins", "message"),
    [
        ("d64-fp32", {"tile_m": 100}, "tile_m: expected a multiple of 24 (rows of a panel), got 1"),
        ("d64-fp64", {"tile_m": 6}, "tile_m: expected a multiple of 12 (rows of a panel), got 6"),
        ("d64-fp32", {"tile_n": 30}, "tile_n: expected a multiple of 4 (block_rows), got 30"),
        ("d64-fp32-dropout", {"tile_m": 24}, "tile_m: expected a multiple of 16 (queries of a d"),
        ("d64-fp32-dropout", {"tile_n": 48}, "tile_n: expected a multiple of 32 (keys of a drop"),
        ("d64-fp32", {"block_rows": 8}, "block of 8x3 needs 28 vector registers, x86-64-v3 has 16"),
        ("d64-fp32", {"block_rows": 3}, "block_rows: expected a divisor of 8"),
        ("d64-fp32", {"isa": "avx9"}, "isa: expected one of x86-64-v3, x86-64-v4, native, got 'av"),
        ("d64-fp32", {"vector_bytes": 64}, "vector_bytes: expected 32 with isa x86-64-v3, got 64"),
        ("d64-fp32", {"vector_bytes": 16}, "vector_bytes: expected 32 or 64, got 16"),
        ("d64-fp32", {"num_stages": 2}, "expected one of tile_m, tile_n, isa"),
        ("d64-fp32", {"tile_m": "wide"}, "tile_m: expected a positive integer, got 'wide'"),
    ],
)
def test_an_illegal_pin_is_refused_with_its_limit(key, pins, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        make(key, **pins)


def test_a_pin_of_the_backward_is_checked_there():
    with pytest.raises(PlanError, match="dkv_tile_n: expected a multiple of 24"):
        make("d64-fp32", "backward", dkv_tile_n=64)


def test_wide_vectors_are_a_pin_away():
    wide = make("d64-fp32", isa="x86-64-v4", vector_bytes=64, block_rows=8)
    assert wide.panel_width == 48
    assert "-march=x86-64-v4" in wide.compile_flags
    assert "kVectorBytes = 64;" in render(wide).text


def test_flags_keep_infinities():
    flags = make("d64-fp32").compile_flags
    assert "-march=x86-64-v3" in flags
    assert not {"-ffast-math", "-Ofast", "-ffinite-math-only"} & set(flags)


@pytest.mark.parametrize("pass_name", PASSES)
def test_rendered_source_says_what_it_is_and_only_what_it_needs(pass_name):
    plain = render(make("d64-fp32", pass_name)).text
    full = render(make("d64-fp32-causal-dropout", pass_name)).text
    short = {"forward": "fwd", "backward": "bwd"}[pass_name]
    assert plain.startswith("// flashgen ")
    assert f"| d64-fp32 | cpu | {short} | generated: do not edit\n" in plain
    for word in ("dropout_tile", "philox", "mask_scores", "mask_element"):
        assert word not in plain
    assert "dropout_tile" in full
    assert "\n\n\n" not in plain + full


def test_no_template_is_too_long():
    env = environment()
    for name in env.list_templates(filter_func=lambda path: path.startswith("cpu/")):
        lines = env.loader.get_source(env, name)[0].splitlines()
        assert len(lines) <= 350, name
        assert max(map(len, lines)) <= 100, name
