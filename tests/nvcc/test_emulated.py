"""Kernels on an emulated thread block: right whether asynchronous work comes soon or late.

Needs nvcc for CUDA's headers alone, and no GPU.
"""

from __future__ import annotations

import math

import emulated
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime import passes as passes_module
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

pytestmark = pytest.mark.nvcc
CPU = torch.device("cpu")
SHAPES = (
    Shape(2, 4, 2, 113, 203),  # unequal, no multiple of any tile, grouped heads
    Shape(1, 3, 1, 300, 130),  # several blocks of queries for each thread block; rows without keys
    Shape(1, 1, 1, 1, 1),
    Shape(1, 1, 1, 2, 400),  # more steps than stages
)
KEYS = (
    "d64-bf16-causal",  # two configurations, of which a call chooses
    "d128-fp16",  # the next block's S behind this one's P V
    "d192v128-bf16-causal-dropout",
    "d72-bf16-varlen-causal-window40x9-sink",
    "d32-fp16-softcap5-alibi-sink-blockmask16x32",
)


FAULTS = {  # text -> what a fault makes of it
    "wgmma_wait<0>();\n                pin_accumulators(out);": "pin_accumulators(out);",
    "shared.v_full(v.stage).wait(v.parity);": "",
    "    fence_async_proxy();\n": "",
}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Every result starts as NaN: what a kernel leaves unwritten is seen."""

    def poisoned(shape, dtype, device):
        value = 0xFF if dtype == torch.uint8 else math.nan
        return torch.full(shape, value, dtype=dtype, device=device)

    monkeypatch.setattr(passes_module, "_empty", poisoned)


def emulate(key, folder, target="sm90", passes=("forward",), pins=None):
    """The kernel of the passes' plans, the backward's with `pins`."""
    plans = [plan(parse_key(key), name, TARGETS[target]) for name in passes]
    plans[-1] = plans[-1].pinned(pins or {}).check()
    return emulated.EmulatedKernel(plans, folder)


def check(kernel, early=SHAPES[::3], late=SHAPES, backward=False):
    """The error rule for these shapes, with work at once and with all of it late."""
    for shapes, is_late in ((early, False), (late, True)):
        kernel.work_late(is_late)
        for shape in shapes:
            for name, found in compare_call(kernel, shape, CPU, backward=backward).items():
                assert found.ok, f"{name}, {shape}, late={is_late}: {found}"


@pytest.mark.parametrize("key", KEYS)
def test_forward_of_sm90(key, tmp_path):
    check(emulate(key, tmp_path))


@pytest.mark.parametrize("key", ["d64-bf16-causal", "d72-fp16"])
def test_both_passes_of_sm90(key, tmp_path):
    check(emulate(key, tmp_path, passes=PASSES), early=SHAPES, backward=True)


@pytest.mark.parametrize(
    ("key", "pins"),
    [
        ("d64-bf16-causal", {"early_exponentials": True, "short_addresses": True}),
        ("d72-fp16-causal", {"tile_m": 80, "head_sections": True, "chained_launches": True}),
    ],
)
def test_plans_of_the_tuner(key, pins, tmp_path):
    kernel = emulate(key, tmp_path, passes=PASSES, pins=pins)
    check(kernel, early=SHAPES[:1], backward=True)


def test_both_passes_of_sm80(tmp_path):
    key = "d32-fp16-varlen-causal-sink-dropout-det"
    # nothing of this family is modelled as late
    check(emulate(key, tmp_path, "sm80", PASSES), late=(), backward=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, tmp_path, monkeypatch):
    replaced = 0

    def with_fault(text, bf16, on_cpu=emulated.on_cpu):
        nonlocal replaced
        replaced += text.count(fault)
        return on_cpu(text.replace(fault, FAULTS[fault]), bf16)

    monkeypatch.setattr(emulated, "on_cpu", with_fault)
    kernel = emulate("d16-bf16-varlen", tmp_path)
    assert replaced == 1
    with pytest.raises((AssertionError, RuntimeError)):
        check(kernel)
