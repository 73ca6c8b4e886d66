"""Scores that overflow in base 2, on a GPU."""

from __future__ import annotations

import low_scores
import pytest

from flashgen.generator.spec import load_specs
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.devices import target_of
from flashgen.runtime.kernel import Kernel

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", ["sm80", None])
def test_lowest_scores_hide_keys(device, family):
    spec = load_specs(low_scores.SPEC, "low.yaml")[0]
    (variant,) = spec.variants
    passes = ("forward", "backward")
    build([BuildRequest(variant, name, target_of(device), family) for name in passes])
    low_scores.check(Kernel(variant, device, spec=spec, family=family), device)
