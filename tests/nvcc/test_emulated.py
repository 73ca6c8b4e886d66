"""Kernels on an emulated thread block: right whether asynchronous work comes soon or late.

Needs nvcc for CUDA's headers alone, and no GPU.
"""

from __future__ import annotations

import ctypes
import math

import emulated
import pytest
import sm90_gemm
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.render import headers_of
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
PINS = (
    {"tile_m": 128, "tile_n": 64, "num_stages": 4, "teams": 2, "q_slots": 2, "chain": True},
    {"tile_m": 192, "tile_n": 96, "chain": True},
)
GOING = {"persistent_blocks": False, "early_conversion": False}
PERSISTENT = {"persistent_blocks": True, "early_conversion": False}


FAULTS = {  # text -> what a fault makes of it
    "wgmma_wait<0>();\n                pin_accumulators(out);": "pin_accumulators(out);",
    "shared.v_full(v.stage).wait(v.parity);": "",
    "    fence_async_proxy();\n": "",
}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Every result starts as NaN: what a kernel leaves unwritten is seen."""

    def poisoned(pattern):
        value = 0xFF if pattern.dtype == torch.uint8 else math.nan
        return torch.full_like(pattern, value, memory_format=torch.contiguous_format)

    monkeypatch.setattr(passes_module, "_like", poisoned)


def emulate(key, folder, target="sm90", passes=("forward",), pins=None, family=None):
    """The kernel of the passes' plans, the backward's with `pins`."""
    plans = [plan(parse_key(key), name, TARGETS[target], family=family) for name in passes]
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


@pytest.mark.parametrize("pins", PINS, ids=("teams", "chained"))
def test_forward_with_pins(pins, tmp_path):
    check(emulate("d32-bf16-causal", tmp_path, pins=pins))


@pytest.mark.parametrize("key", ["d64-bf16-causal", "d72-fp16"])
def test_both_passes_of_sm90(key, tmp_path):
    check(emulate(key, tmp_path, passes=PASSES), early=SHAPES, backward=True)


@pytest.mark.parametrize(
    ("key", "pins"),
    [
        (
            "d64-bf16-causal",
            {"early_exponentials": True, "short_addresses": True},
        ),
        ("d72-fp16-causal", {"tile_m": 32, "head_sections": 32, "chained_launches": True, **GOING}),
        ("d64-fp16-causal", PERSISTENT),
        ("d40-bf16-varlen-causal", PERSISTENT),  # tiles of keys that no sequence has
        ("d72-bf16-blockmask64x64", PERSISTENT),  # tiles that no query sees
    ],
)
def test_plans_of_the_tuner(key, pins, tmp_path):
    kernel = emulate(key, tmp_path, passes=PASSES, pins=pins)
    check(kernel, early=SHAPES[:1], backward=True)


def test_packed_sequences_of_sm90_keep_out_of_each_other(tmp_path):
    """No NaN of a sequence, or of rows behind the last, reaches another one's gradients."""
    kernel = emulate("d40-bf16-varlen-causal", tmp_path, passes=PASSES, family="sm90")
    check(kernel, early=SHAPES[:1], late=SHAPES[:1], backward=True)
    starts_q, starts_k = (torch.tensor(s) for s in ((0, 40, 110, 110, 115), (0, 60, 93, 99, 230)))
    packed = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}

    def gradients(own):
        torch.manual_seed(0)
        tensors = [torch.randn(n, 2, 40).bfloat16() for n in (124, 241, 241, 124)]
        for tensor, starts in zip(tensors, (starts_q, starts_k, starts_k, starts_q), strict=True):
            tensor[starts[1] : starts[2]] = own
            tensor[starts[-1] :] = own
        q, k, v, dout = tensors
        out, lse, _ = kernel.forward(q, k, v, **packed)
        return kernel.backward(dout, q, k, v, out, lse, **packed)

    clean, other = gradients(1.0), gradients(math.nan)
    for name, starts in (("dq", starts_q), ("dk", starts_k), ("dv", starts_k)):
        found, wanted = getattr(other, name), getattr(clean, name)
        assert found[starts[1] : starts[2]].isnan().any()
        assert torch.equal(found[: starts[1]], wanted[: starts[1]])
        assert torch.equal(found[starts[2] :], wanted[starts[2] :])
        assert not found[starts[-1] :].any()


@pytest.mark.parametrize(
    "key",
    [
        "d136v48-bf16-causal",  # shares of a page, and of a page behind two others
        "d136v48-bf16-causal-det",  # dQ in a kernel of its own
    ],
)
def test_wide_heads_of_sm90(key, tmp_path):
    kernel = emulate(key, tmp_path, passes=PASSES, family="sm90")
    check(kernel, early=(), late=SHAPES[:1] + SHAPES[3:], backward=True)


def test_both_passes_of_sm80(tmp_path):
    key = "d32-fp16-varlen-causal-sink-dropout-det"
    # nothing of this family is modelled as late
    check(emulate(key, tmp_path, "sm80", PASSES), late=(), backward=True)


def test_a_matrix_product_of_the_device_headers(tmp_path):
    source = sm90_gemm.source()
    library = emulated.compile_text(source, headers_of(source), tmp_path, bf16=True)
    gemm = sm90_gemm.gemm_of(library, num_sms=3)
    for late in (False, True):
        ctypes.CDLL(str(library)).emulate_late(late)
        for sizes in ((128, 256, 320), (200, 328, 136), (8, 8, 8)):
            assert sm90_gemm.relative_error(gemm, *sizes, CPU) < 4e-3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, tmp_path, monkeypatch):
    replaced = emulated.with_fault(monkeypatch, fault, FAULTS[fault])
    kernel = emulate("d16-bf16-varlen", tmp_path)
    assert sum(replaced) == 1
    with pytest.raises((AssertionError, RuntimeError)):
        check(kernel)


def test_without_keys_every_gradient_is_zero(tmp_path):
    """As other languages may call it; from Python such a call launches nothing."""
    kernel = emulate("d64-bf16-causal", tmp_path, passes=PASSES)
    (compiled,) = (one for (_, name), one in kernel._passes.items() if name == "backward")
    q = torch.randn(2, 150, 3, 64).bfloat16()
    k = torch.empty(2, 0, 3, 64).bfloat16()
    dq, dk = torch.full_like(q, math.nan), torch.empty_like(k)
    lse = torch.full((2, 3, 150), -math.inf)
    workspace = torch.full((compiled.workspace(2, 3, 3, 150, 0),), 0xFF, dtype=torch.uint8)
    inputs = (q, q, k, k, torch.zeros_like(q), lse, None, None, workspace)
    compiled.function(dq, dk, torch.empty_like(k), *inputs, 0.125, 0)
    assert not dq.any()
