"""Family sm80: every loop that `flashgen tune` would try is right about scores that grow.

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
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

LOOPS = ((2, True), (2, False), (1, True))  # num_stages, paced
SHAPES = (Shape(2, 4, 2, 1113, 2203), Shape(1, 3, 1, 300, 130), Shape(1, 2, 1, 20, 3000))
PROGRAMS = (
    'mask: "abs(q_idx - kv_idx) % 512 < 90"',  # empty, partial and full tiles
    'mask: "(q_idx * 7 + kv_idx) % 5 < 5 + b"',  # full ones alone
    "window: {left: 130, right: 40}",
    "layout: varlen\ncausal: true\nwindow: {left: 300, right: 0}",
    "block_mask: {q: 128, kv: 64}",
)

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


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("fields", PROGRAMS)
def test_walks_and_windows_load_ahead(device, size, fields):
    spec = load_specs(f"head_dim: {size}\ndtype: bf16\n{fields}\n", "walk.yaml")[0]
    (variant,) = spec.variants
    target = target_of(device)
    loops = [
        (("num_stages", stages), ("paced", paced), ("short_rows", True), ("tile_n", 64))
        for stages, paced in LOOPS
    ]
    build([BuildRequest(variant, "forward", target, "sm80", loop) for loop in loops])
    for loop in loops:
        tuning = tuple(Pin(target.name, "forward", name, pin, 0, 0) for name, pin in loop)
        pinned = replace(spec, tuning=tuning)
        kernel = Kernel(variant, device, spec=pinned, family="sm80", passes=("forward",))
        for shape in SHAPES:
            for name, found in compare_call(kernel, shape, device, backward=False).items():
                assert found.ok, f"{loop}, {name}, {shape}: {found}"
