"""Scores that overflow in base 2, on an emulated thread block."""

from __future__ import annotations

import emulated
import low_scores
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize("family", ["sm80", "sm90"])
def test_lowest_scores_hide_keys(family, tmp_path):
    (variant,) = load_specs(low_scores.SPEC, "low.yaml")[0].variants
    plans = [plan(variant, name, TARGETS["sm90"], family=family) for name in PASSES]
    low_scores.check(emulated.EmulatedKernel(plans, tmp_path), torch.device("cpu"))
