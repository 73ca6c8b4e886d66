"""Family sm80: every loop that `flashgen tune` would try rescales where scores grow.

Tuning checks candidates by the error rule's samples, which don't make a lazy maximum move.
"""

from __future__ import annotations

from dataclasses import replace

import growing_scores
import pytest
import torch

from flashgen.generator.pins import Pin
from flashgen.generator.plan import candidates
from flashgen.generator.spec import load_specs
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.devices import target_of
from flashgen.runtime.kernel import Kernel

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]


@pytest.mark.parametrize("size", [64, 128, 256])
def test_candidates_rescale_scores_that_grow(device, size):
    spec = load_specs(f"head_dim: {size}\ndtype: bf16\n", "growing.yaml")[0]
    (variant,) = spec.variants
    target = target_of(device)
    plans = list(candidates(variant, "forward", target, family="sm80"))
    pins = [tuple((name, getattr(one, name)) for name in one.pins) for one in plans]
    build([BuildRequest(variant, "forward", target, "sm80", chosen) for chosen in pins])
    for chosen in pins:
        tuning = tuple(Pin(target.name, "forward", name, pin, 0, 0) for name, pin in chosen)
        pinned = replace(spec, tuning=tuning)
        kernel = Kernel(variant, device, spec=pinned, family="sm80", passes=("forward",))
        for case, error in growing_scores.errors(kernel, size, torch.bfloat16, device):
            assert error < growing_scores.TOLERANCE[torch.bfloat16], f"{chosen} {case}: {error}"
