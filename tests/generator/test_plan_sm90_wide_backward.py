"""generator/plan/sm90_wide_backward.py: head sizes above 128."""

from __future__ import annotations

import pytest

from flashgen.generator.arch import TARGETS
from flashgen.generator.errors import PlanError
from flashgen.generator.plan import candidates, plan, sm90_wide_backward
from flashgen.generator.plan.sm90_wide_backward import share_of
from flashgen.generator.variant import Variant, parse_key

SM90 = TARGETS["sm90"]
LAUNCH_REGISTERS = 65_536


def make(key, **pins):
    return plan(parse_key(key), "backward", SM90, family="sm90", pins=pins)


def columns_of(share, group):
    """As templates/device/column_share.cuh has them."""
    own = [group * share.head + i for i in range(share.head)]
    return own + [128 + group * share.tail + i for i in range(share.tail)]


@pytest.mark.parametrize("size", range(8, 257, 8))
def test_two_shares_are_all_columns_once(size):
    share = share_of(size)
    columns = columns_of(share, 0) + columns_of(share, 1)
    assert len(columns) == len(set(columns)) == 2 * share.width
    assert set(range(size)) <= set(columns)
    assert share.width % 16 == share.head % 16 == 0 and share.width <= 128
    # The first warpgroup has no columns that aren't there, so that it need not ask.
    assert max(columns_of(share, 0)) < -(-size // 16) * 16


@pytest.mark.parametrize("size", range(8, 257, 8))
def test_a_share_ends_where_its_pages_do(size):
    share = share_of(size)
    pages = -(-size // 64)
    for group in (0, 1):
        for start, width in (
            (group * share.head, share.head),
            (128 + group * share.tail, share.tail),
        ):
            assert start % 64 + width <= 64 or width == 0
        assert max(columns_of(share, group)) < pages * 64


def test_every_size_fits():
    for size in range(136, 257, 8):
        for size_v in {size, 8, 64, 128, 256}:
            for bits in (0, 8):
                for causal in (False, True):
                    variant = Variant(size, size_v, "bf16", causal, bits)
                    found = sm90_wide_backward.plan(variant, "backward", SM90, "sm90", "")
                    assert found.smem_bytes <= SM90.max_smem_bytes


@pytest.mark.parametrize("key", ["d256-bf16", "d256-bf16-blockmask128x128"])
def test_registers_are_those_of_the_launch(key):
    found = make(key)
    start = LAUNCH_REGISTERS // (32 * found.num_warps + 128) // 8 * 8
    assert found.producer_registers + 2 * found.consumer_registers <= 3 * start
    assert found.registers_estimate <= found.consumer_registers


@pytest.mark.parametrize("key", ["d160-bf16", "d256-bf16-causal-dropout", "d192v128-fp16"])
def test_buffers_do_not_overlap_and_tiles_are_aligned(key):
    buffers = make(key).smem
    for before, after in zip(buffers, buffers[1:], strict=False):
        assert before.offset_bytes + before.size_bytes <= after.offset_bytes
    tiles = [b for b in buffers if b.name in ("k", "v", "q", "dout", "p", "ds")]
    assert len(tiles) == 6
    assert all(buffer.offset_bytes % 1024 == 0 for buffer in tiles)


@pytest.mark.parametrize("key", ["d136-bf16", "d256-fp16-causal", "d64v256-bf16", "d192v128-bf16"])
def test_head_sizes_above_128_are_its_own(key):
    found = plan(parse_key(key), "backward", SM90)
    assert found.family == "sm90" and found.shares_keys and found.template == "sm90/backward.cu.j2"


def test_what_is_tried_is_all_different():
    for key in ("d256-bf16", "d192v128-bf16-causal", "d256-bf16-window128x0"):
        found = list(candidates(parse_key(key), "backward", SM90, family="sm90"))
        assert found[0].chained and found[0].own_dq and not found[0].apart
        assert found[0].sections == (key == "d192v128-bf16-causal")
        assert len(found) == len(set(found)) >= 4


def test_deterministic_variants_have_a_kernel_for_dq():
    for key in ("d256-bf16-det", "d192v128-fp16-causal-dropout-det"):
        for one in candidates(parse_key(key), "backward", SM90, family="sm90"):
            assert one.separate_dq and one.registers_estimate <= one.consumer_registers
            assert {product.name for product in one.products} >= {"wgmma_rows", "wgmma_dq"}
    assert not make("d256-bf16", own_dq=False).separate_dq


def test_sums_apart_have_all_columns_and_nothing_to_exchange():
    found = make("d192v128-bf16", own_dq=True, apart=True)
    widths = {product.name: product.width for product in found.products}
    assert (widths["wgmma_dk"], widths["wgmma_dv"], widths["wgmma_scores"]) == (192, 128, 64)
    assert not {"p", "ds"} & {buffer.name for buffer in found.smem}
    for key, pins in (("d256-bf16", {"own_dq": False}), ("d256-bf16-dropout", {"own_dq": True})):
        with pytest.raises(PlanError, match="expected own_dq and no dropout beside apart"):
            make(key, apart=True, **pins)


def test_tile_tests_leave_no_registers_for_two_products_at_once():
    ways = {"own_dq": False, "chained_products": True}
    with pytest.raises(PlanError, match="registers"):
        make("d256-bf16-blockmask128x128", **ways)
    assert make("d192-bf16-blockmask128x128", **ways).chained_products


def test_a_tile_that_does_not_fit():
    with pytest.raises(PlanError, match="tuning: backward on sm90: expected one of num_stages"):
        make("d256-bf16", tile_m=128)
    with pytest.raises(PlanError, match="bytes of shared memory"):
        make("d256-bf16", num_stages=3)
