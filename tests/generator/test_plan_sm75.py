"""generator/plan/sm75.py: every fp16 size fits Turing's 64 KiB; what it can't do says so."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.arch import TARGETS
from flashgen.generator.errors import PlanError
from flashgen.generator.plan import candidates, plan
from flashgen.generator.render import render
from flashgen.generator.variant import PASSES, Variant, parse_key

SM75 = TARGETS["sm75"]


@pytest.mark.parametrize("pass_name", PASSES)
def test_every_size_fits(pass_name):
    for size in range(8, 257, 8):
        for size_v in {size, 8, 128, 256}:
            for bits, det in ((0, False), (0, True), (8, False), (16, True)):
                variant = Variant(size, size_v, "fp16", True, bits, det)
                found = plan(variant, pass_name, SM75)
                assert (found.family, found.smem_bytes <= 65_536) == ("sm75", True)
                assert found.registers_estimate <= found.max_registers
                assert found == next(iter(candidates(variant, pass_name, SM75)))
                if pass_name == "backward" and det:
                    assert found.dq_smem_bytes <= 65_536


def test_the_kernels_are_the_texts_of_sm80_with_other_copies():
    for pass_name in PASSES:
        text = render(plan(parse_key("d128-fp16-causal"), pass_name, SM75)).text
        assert '#include "device/copy_staged.cuh"' in text and "cp_async" not in text
    wide = render(plan(parse_key("d224-fp16"), "forward", SM75))
    assert {"device/copy_direct.cuh", "device/copy_rows.cuh"} <= {path for path, _ in wide.headers}


@pytest.mark.parametrize(
    ("key", "pass_name", "pins", "message"),
    [
        ("d64-bf16", "forward", {}, "dtype bf16 runs on cpu, sm80, sm86, sm87, sm89, sm90"),
        ("d64-bf16", "backward", {}, "got target sm75. Use fp16."),
        ("d128-fp16", "forward", {"tile_n": 64}, "shared memory, sm75 allows 65536"),
        ("d64-fp16", "forward", {"copy": "copy_async"}, "copy_staged, copy_direct, got"),
        ("d64-fp16", "backward", {"num_stages": 2}, "expected num_stages 1"),
        ("d256-fp16-det", "backward", {"dq_tile_m": 64}, "Lower dq_tile_m or dq_tile_n"),
    ],
)
def test_what_does_not_fit_names_the_limit(key, pass_name, pins, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        plan(parse_key(key), pass_name, SM75, pins=pins)
