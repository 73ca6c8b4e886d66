"""Family sm90's backward whose thread blocks go from tile of keys to tile of keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.pins import Pin
from flashgen.generator.plan import plan
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import random_inputs
from flashgen.runtime.verify import Shape, compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "poison")]

SM90 = TARGETS["sm90"]
PERSISTENT = {"persistent_blocks": True}
PINS = {"persistent": PERSISTENT, "early": {**PERSISTENT, "early_conversion": True}}
KEYS = (
    *("d128-bf16", "d128-bf16-causal", "d96-fp16-causal", "d64-bf16-causal", "d64-fp16"),
    *("d40-bf16-causal", "d128v96-bf16-causal", "d72-bf16", "d128-bf16-causal-softcap50"),
    *("d128-fp16-causal-dropout", "d64-bf16-causal-sink-dropout", "d64-bf16-alibi"),
    *("d128-bf16-varlen-causal", "d64-fp16-varlen", "d96-bf16-varlen-window100x0-sink"),
    *("d128-bf16-causal-det", "d64-fp16-det", "d128-bf16-varlen-causal-det"),
    *("d64-bf16-blockmask64x64", "d64-bf16-blockmask64x64-det", "d128-bf16-window100x0"),
)
SHAPES = (
    Shape(2, 4, 2, 300, 300),
    Shape(1, 4, 4, 1, 77),
    Shape(1, 8, 1, 129, 513),
    Shape(1, 2, 2, 64, 1000),
    Shape(8, 16, 16, 640, 640),  # several tiles of keys for every multiprocessor
    Shape(2, 64, 8, 300, 1300),
    Shape(2, 96, 96, 40, 200),  # tiles that no query sees
)


def can(pins, key):
    """Whether a plan of the key can have these pins."""
    return pins == "persistent" or not ("varlen" in key or key.endswith("-det"))


CASES = [(pins, key) for pins in PINS for key in KEYS if can(pins, key)]


def request(pins, key):
    variant = parse_key(key)
    pinned = plan(variant, "backward", SM90, family="sm90").pinned(PINS[pins]).check()
    pins = tuple((name, getattr(pinned, name)) for name in pinned.pins)
    return BuildRequest(variant, "backward", SM90, "sm90", pins)


@pytest.fixture(scope="module")
def built():
    """Every kernel of these tests is built at once."""
    forwards = [BuildRequest(parse_key(key), "forward", SM90) for key in KEYS]
    build([*(request(pins, key) for pins, key in CASES), *forwards])


def kernel_of(pins, key, device):
    one = request(pins, key)
    (spec,) = load_specs(
        f"head_dim: {one.variant.head_dim}\ndtype: {one.variant.dtype}\n", "p.yaml"
    )
    tuning = tuple(Pin("sm90", "backward", name, value, 0, 0) for name, value in one.pins)
    return Kernel(one.variant, device, spec=replace(spec, tuning=tuning), family="sm90")


@pytest.mark.parametrize(("pins", "key"), CASES)
@pytest.mark.usefixtures("built")
def test_gradients_are_right(device, pins, key):
    kernel = kernel_of(pins, key, device)
    for shape in SHAPES:
        found = compare_call(kernel, shape, device, dropout_p=0.3 if "dropout" in key else 0.0)
        wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
        assert not wrong, f"{key} {shape}: " + "; ".join(wrong)


@pytest.mark.parametrize("key", [key for key in KEYS if key.endswith("-det")])
@pytest.mark.usefixtures("built")
def test_every_call_gives_the_same_bits(device, key):
    kernel = kernel_of("persistent", key, device)
    data = random_inputs(kernel.variant, Shape(4, 16, 4, 1000, 2048), device, seed=1)
    out, lse, _ = kernel.forward(data.q, data.k, data.v, **data.arguments)
    tensors = (data.dout, data.q, data.k, data.v, out, lse)
    first = kernel.backward(*tensors, **data.arguments)
    for _ in range(5):
        again = kernel.backward(*tensors, **data.arguments)
        for name in ("dq", "dk", "dv"):
            assert torch.equal(getattr(again, name), getattr(first, name)), name


@pytest.mark.parametrize("pins", PINS)
@pytest.mark.usefixtures("built")
def test_no_queries(device, pins):
    """No kernel before resets the counter, and every tile of keys is written all the same."""
    kernel = kernel_of(pins, "d64-bf16-causal", device)
    q = torch.empty(4, 0, 32, 64, device=device, dtype=torch.bfloat16)
    k = torch.randn(4, 700, 32, 64, device=device, dtype=torch.bfloat16)
    out, lse, _ = kernel.forward(q, k, k)
    grads = kernel.backward(torch.empty_like(q), q, k, k, out, lse)
    assert not grads.dk.any() and not grads.dv.any()
