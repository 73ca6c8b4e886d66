"""Family sm80: masks of positions alone, whose backward has the tiles of no mask at all."""

from __future__ import annotations

import pytest

from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.devices import target_of
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.verify import Shape, compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]

MASKS = (
    "q_idx // 3 - kv_idx // 5 < kv_len + q_len",  # hides nothing, and each tile is known to be full
    "(q_idx * 7 + kv_idx * 5) % 97 != 98 + b",  # hides nothing, and no tile is known to be full
    "(q_idx // 64 + kv_idx // 128) % 3 != 0",  # whole tiles of both kinds
    "(q_idx + kv_idx) % 5 != 0",
    "kv_idx >= 300",  # empty tiles first; with few keys nothing is visible at all
)
SHAPES = (
    Shape(2, 4, 2, 513, 700),
    Shape(1, 2, 1, 64, 128),
    Shape(1, 2, 2, 1, 1),
    Shape(1, 2, 2, 2500, 129),
)


@pytest.mark.parametrize("size", [96, 128])
def test_masks_of_positions_are_right(device, size):
    specs = [f'head_dim: {size}\ndtype: bf16\nmask: "{mask}"\n' for mask in MASKS]
    variants = [load_specs(spec, "mask.yaml")[0].variants[0] for spec in specs]
    target = target_of(device)
    build([BuildRequest(v, name, target, "sm80") for v in variants for name in PASSES])
    for mask, variant in zip(MASKS, variants, strict=True):
        kernel = Kernel(variant, device, family="sm80")
        for shape in SHAPES:
            for name, found in compare_call(kernel, shape, device).items():
                assert found.ok, f"{mask} {name} {shape}: {found}"
