"""Family sm90's forward: what the tuner tries beyond the older plans is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.generator.arch import TARGETS
from flashgen.generator.pins import Pin
from flashgen.generator.plan import candidates
from flashgen.generator.plan.sm90_untried import untried
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.verify import Shape, compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "poison")]

SM90 = TARGETS["sm90"]
KEYS = (
    *("d64-bf16", "d64-fp16-causal", "d64-bf16-varlen-causal", "d40-bf16-causal"),
    *("d64-bf16-window70x9-sink", "d192v128-bf16-causal", "d256-bf16", "d256-fp16-causal"),
)
SHAPES = (
    Shape(2, 4, 2, 300, 300),
    Shape(1, 4, 4, 1, 77),
    Shape(1, 8, 1, 129, 513),
    Shape(3, 5, 5, 1088, 640),
    Shape(8, 16, 16, 512, 512),  # several blocks of queries for every multiprocessor
    Shape(8, 16, 16, 640, 640),  # an odd number of blocks of a head
)


def pins_of(key):
    """The pins of every such candidate."""
    new = {str(tiles) for (tiles,) in untried(parse_key(key))}
    found = candidates(parse_key(key), "forward", SM90)
    return [
        tuple((name, getattr(plan, name)) for name in plan.pins)
        for plan in found
        if not plan.choice and str(plan.configs[0].tiles) in new
    ]


@pytest.fixture(scope="module")
def built():
    """Every plan of these tests is built at once."""
    plans = [(parse_key(key), pins) for key in KEYS for pins in pins_of(key)]
    build([BuildRequest(variant, "forward", SM90, None, pins) for variant, pins in plans])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.usefixtures("built")
def test_plans_of_the_tuner(device, key):
    variant = parse_key(key)
    (spec,) = load_specs(f"head_dim: {variant.head_dim}\ndtype: {variant.dtype}\n", "pinned.yaml")
    plans = pins_of(key)
    assert plans
    for pins in plans:
        tuning = tuple(Pin("sm90", "forward", name, value, 0, 0) for name, value in pins)
        kernel = Kernel(variant, device, spec=replace(spec, tuning=tuning), passes=("forward",))
        for shape in SHAPES:
            found = compare_call(kernel, shape, device, backward=False)
            wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
            assert not wrong, f"{key} {pins} {shape}: " + "; ".join(wrong)
