"""generator/plan/sm90_backward.py: what ships fits the target; the rest falls back and says so."""

from __future__ import annotations

import pytest

from flashgen.generator.arch import TARGETS
from flashgen.generator.errors import PlanError
from flashgen.generator.plan import candidates, plan, sm90_backward
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import Variant, parse_key

SM90 = TARGETS["sm90"]
LAUNCH_REGISTERS = 65_536


def make(key, **pins):
    return own(parse_key(key)).pinned(pins).check()


def own(variant):
    """The family's plan, also of what it doesn't offer yet."""
    return sm90_backward.plan(variant, "backward", SM90, "sm90", "")


def test_every_size_up_to_128_fits():
    for size in range(8, 129, 8):
        for size_v in {size, 8, 128}:
            for bits in (0, 8):
                variant = Variant(size, size_v, "bf16", True, bits)
                assert own(variant).smem_bytes <= SM90.max_smem_bytes


@pytest.mark.parametrize("key", ["d64-bf16", "d128-bf16", "d128-bf16-blockmask128x128"])
def test_registers_are_those_of_the_launch(key):
    found = make(key)
    start = LAUNCH_REGISTERS // (32 * found.num_warps + 128) // 8 * 8
    assert found.producer_registers + 2 * found.consumer_registers <= 3 * start
    assert found.producer_registers % 8 == found.consumer_registers % 8 == 0


@pytest.mark.parametrize("key", ["d64-bf16", "d72-bf16-causal-dropout", "d128-fp16-softcaprt"])
def test_buffers_do_not_overlap_and_tiles_are_aligned(key):
    buffers = make(key).smem
    for before, after in zip(buffers, buffers[1:], strict=False):
        assert before.offset_bytes + before.size_bytes <= after.offset_bytes
    tiles = [buffer for buffer in buffers if buffer.name in ("k", "v", "q", "dout", "ds")]
    assert len(tiles) == 5
    assert all(buffer.offset_bytes % 1024 == 0 for buffer in tiles)


@pytest.mark.parametrize("size", [8, 40, 64, 72, 96, 128])
@pytest.mark.parametrize("dropout", ["", "-dropout"])
def test_the_warpgroups_share_all_of_dq(size, dropout):
    found = make(f"d{size}-bf16{dropout}")
    if found.splits_dq_columns:
        assert found.tile_m == 64
        assert 2 * found.dq_columns == found.padded_qk >= size
    else:
        assert found.tile_m == 128
        assert found.dq_columns == found.padded_qk >= size
    assert found.padded_qk % 16 == 0


def documents(dims, index, more=""):
    text = (
        f"head_dim: 128\ndtype: bf16\ncausal: true\n{more}"
        f"captures: {{doc: {{dims: {dims}, dtype: int32}}}}\n"
        f"mask: 'doc[{index}q_idx] == doc[{index}kv_idx]'\n"
    )
    (variant,) = load_specs(text, "documents.yaml")[0].variants
    return variant


def test_what_it_lacks_falls_back_and_says_so():
    why = (
        "causal masks with tests of tiles, beside scores or captures of two dimensions, "
        "above 64 columns"
    )
    wide = documents("[batch, seqlen_k]", "b, ")
    for variant in (wide, documents("[seqlen_k]", "", "softcap: 30\n")):
        found = plan(variant, "backward", SM90)
        assert found.family == "sm80"
        assert found.reason == f"fallback: family sm90 has no backward for {why}"
        assert plan(variant, "backward", SM90, family="sm90").family == "sm90"
    assert plan(documents("[seqlen_k]", ""), "backward", SM90).family == "sm90"


def test_thread_blocks_stay_where_that_was_faster():
    for key in ("d64-bf16", "d128-bf16-causal", "d72-fp16", "d128-bf16-window1024x0"):
        assert make(key).persistent and make(key).converts_early
    assert make("d128-bf16-causal-alibi").persistent
    assert not make("d128-bf16-causal-softcap30").converts_early
    assert make("d128-bf16-blockmask128x128").converts_early
    for key in ("d64-bf16-det", "d128-bf16-dropout", "d64-bf16-varlen", "d96-bf16-causal"):
        assert not make(key).persistent


@pytest.mark.parametrize("key", ["d64-bf16-det", "d64-bf16-varlen-causal", "d64-bf16"])
def test_blocks_that_go_convert_nothing(key):
    with pytest.raises(PlanError, match="expected early_conversion with persistent_blocks alone"):
        make(key, persistent_blocks=key != "d64-bf16", early_conversion=True)


@pytest.mark.parametrize(
    "key",
    [
        "d64-bf16",
        "d128-fp16-causal",
        "d40-bf16-causal",
        "d64-bf16-causal-dropout",
        "d128-bf16-window128x0",
        "d64-fp16-softcap30-sink",
        "d64-bf16-varlen-causal",
        "d64-bf16-det",
        "d256-bf16-det",
    ],
)
def test_what_it_has_is_its_own(key):
    found = plan(parse_key(key), "backward", SM90)
    assert found.family == "sm90" and found.template == "sm90/backward.cu.j2"
    assert plan(parse_key(key), "backward", SM90, family="sm80").family == "sm80"


def test_a_tile_that_does_not_fit():
    with pytest.raises(PlanError, match="expected tile_m 32 or 64 at head_dim 128, got 128"):
        make("d128-bf16", tile_m=128)
    with pytest.raises(PlanError, match="expected tile_m 64 or 128"):
        make("d64-bf16", tile_m=32)


def test_what_ships_comes_first_and_alternatives_are_all_different():
    for key in ("d64-bf16", "d128-bf16-causal", "d96-fp16-window128x0", "d128-bf16-dropout"):
        found = list(candidates(parse_key(key), "backward", SM90, family="sm90"))
        assert found[0].chained == (found[0].program.tile_test is None)
        assert found[0].tile_m in (64, 128) and len(found) == len(set(found)) >= 2
        assert all(one.smem_bytes <= SM90.max_smem_bytes for one in found)


@pytest.mark.parametrize("key", ["d64-bf16", "d128-bf16-causal", "d256-bf16-causal", "d192-fp16"])
def test_the_tuner_can_pin_whatever_it_tries(key):
    shipped, *others = candidates(parse_key(key), "backward", SM90, family="sm90")
    for one in others:
        assert shipped.pinned({name: getattr(one, name) for name in one.pins}) == one
    with pytest.raises(PlanError, match="head_sections: expected an integer, 0 or more, got -1"):
        shipped.pinned({"head_sections": -1})


def test_thirty_two_queries_have_all_of_dq_in_whole_pages():
    for size in (72, 96, 128):
        found = make(f"d{size}-bf16", tile_m=32, persistent_blocks=False, early_conversion=False)
        assert found.transposes_dq and found.padded_qk == 128
        (product,) = (one for one in found.products if one.name == "wgmma_dq")
        assert product.width == 32 and product.a_transposed
    assert not make("d128-bf16").transposes_dq and not make("d64-bf16").transposes_dq


def test_gradients_of_captures_take_small_steps():
    spec = "dtype: bf16\ncaptures: {a: {dims: [num_heads], dtype: fp32, grad: true}}\n"
    for size, score, rows in ((64, "score * a[h]", 64), (128, "score * a[h]", 32)):
        text = f'head_dim: {size}\n{spec}score: "{score}"\n'
        variant = load_specs(text, "captures.yaml")[0].variants[0]
        found = plan(variant, "backward", SM90)
        assert found.family == "sm90" and found.tile_m == rows


def test_gradients_of_a_whole_bias_are_the_other_familys():
    (variant,) = load_specs(
        "head_dim: 32\ndtype: bf16\nscore: 'score + bias[h, q_idx, kv_idx]'\ncaptures: {bias: "
        "{dims: [num_heads, seqlen_q, seqlen_k], dtype: bf16, grad: true}}\n",
        "bias.yaml",
    )[0].variants
    assert plan(variant, "backward", SM90).family == "sm80"
    assert plan(variant, "backward", SM90, family="sm90").family == "sm90"


def test_deterministic_variants_have_room_for_two_parts_of_dq():
    for size in (64, 96, 128):
        found = make(f"d{size}-bf16-det")
        assert found.adds_in_order and not found.separate_dq and found.dq_places == 2
        assert found.smem_bytes <= SM90.max_smem_bytes


@pytest.mark.parametrize("key", ["d64-bf16", "d128-bf16-dropout"])
def test_without_a_mask_every_thread_block_is_as_long(key):
    assert not any(one.sections for one in candidates(parse_key(key), "backward", SM90))
