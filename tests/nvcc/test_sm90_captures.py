"""Gradients of captured tensors in family sm90, on an emulated thread block."""

from __future__ import annotations

import emulated
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

pytestmark = pytest.mark.nvcc
SPEC = """\
head_dim: 72
dtype: bf16
causal: true
captures:
  scale: {dims: [num_heads], dtype: fp32, grad: true}
  of_q: {dims: [batch, num_heads, seqlen_q], dtype: fp32, grad: true}
  of_k: {dims: [batch, num_heads_kv, seqlen_k], dtype: fp32, grad: true}
  table: {dims: [num_heads, 32], dtype: fp32, grad: true}
let: {bias: "of_q[b, h, q_idx] - of_k[b, h_kv, kv_idx] + table[h, min(abs(q_idx - kv_idx), 31)]"}
score: "score * scale[h] + bias"
"""


def test_a_capture_for_each_way_that_gradients_are_summed(tmp_path):
    variant = load_specs(SPEC, "captures.yaml")[0].variants[0]
    plans = [plan(variant, name, TARGETS["sm90"], family="sm90") for name in PASSES]
    assert plans[1].family == "sm90" and plans[1].tile_m == 32
    kernel = emulated.EmulatedKernel(plans, tmp_path)
    kernel.work_late(True)
    found = compare_call(kernel, Shape(2, 4, 2, 50, 150), torch.device("cpu"), backward=True)
    assert {"dscale", "dof_q", "dof_k", "dtable"} <= set(found)
    wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
    assert not wrong, wrong
