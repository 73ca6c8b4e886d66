"""Family sm90's backward: every plan that the tuner tries, packed, deterministic, learning."""

from __future__ import annotations

from dataclasses import replace

import catalogue_cases
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.pins import Pin
from flashgen.generator.plan import candidates
from flashgen.generator.program import program_for
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import random_inputs
from flashgen.runtime.verify import Shape, compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper", "poison")]

SM90 = TARGETS["sm90"]
PLAN_KEYS = (
    *("d128-bf16", "d128-bf16-causal", "d128-fp16-causal", "d96-fp16-causal", "d72-bf16"),
    *("d64-bf16-causal", "d64-fp16", "d40-bf16-causal", "d128v96-bf16-causal"),
    *("d256-bf16", "d256-bf16-causal", "d224-fp16-causal", "d192-bf16", "d192v128-bf16-causal"),
    *("d160-bf16-causal", "d136-fp16"),
)
WIDE_KEYS = (
    *("d144-bf16", "d152-fp16-causal", "d168-bf16", "d176-bf16-causal", "d184-fp16"),
    *("d200-bf16-causal", "d208-fp16", "d216-bf16", "d232-bf16", "d240-fp16-causal", "d248-bf16"),
    *("d256v64-bf16-causal", "d128v256-fp16", "d48v160-bf16", "d256-fp16", "d160-fp16"),
    *("d256-bf16-causal-dropout", "d192v128-fp16-dropout16", "d160-bf16-causal-sink"),
    *("d256-bf16-window128x0-softcap50", "d256-bf16-causal-softcap50", "d192-bf16-alibi"),
    *("d256-bf16-causal-det", "d256-fp16-det", "d192v128-bf16-causal-dropout-det", "d160-bf16-det"),
    *("d224-fp16-varlen-causal-det", "d256-bf16-varlen-causal", "d144-bf16-varlen-window40x9"),
    *("d192-bf16-causal-softcap50-sink-det", "d256-fp16-alibi-blockmask64x64-det"),
    *("d256-bf16-blockmask64x64", "d192-fp16-alibi-blockmask128x64-dropout", "d224-bf16-windowrt"),
)
SHAPES = (
    Shape(2, 4, 2, 300, 300),
    Shape(1, 4, 4, 1, 77),
    Shape(1, 8, 1, 129, 513),
    Shape(3, 5, 5, 1088, 640),
    Shape(1, 2, 2, 64, 1000),
)


PACKED_AND_ORDERED = (
    *("d128-bf16-varlen-causal", "d64-fp16-varlen", "d96-bf16-varlen-window100x0-sink"),
    *("d128-bf16-causal-det", "d64-fp16-det", "d96-bf16-window100x0-det", "d64-bf16-causal-det"),
    *("d128-bf16-varlen-causal-det", "d64-bf16-blockmask64x64-det", "d128-fp16-det"),
    *("d72-fp16-causal-sink-dropout-det", "d128-fp16-varlen-causal-dropout"),
    *("d64-bf16-varlen-softcap30", "d40-bf16-varlen-causal"),
)


def pins_of(key):
    """The pins of every candidate, the shipped plan's first."""
    found = candidates(parse_key(key), "backward", SM90, family="sm90")
    return [tuple((name, getattr(plan, name)) for name in plan.pins) for plan in found]


@pytest.fixture(scope="module")
def built():
    """Every plan of these tests is built at once."""
    plans = [(parse_key(key), pins) for key in PLAN_KEYS for pins in pins_of(key)]
    plans += [(parse_key(key), ()) for key in PACKED_AND_ORDERED]
    requests = [BuildRequest(v, "backward", SM90, "sm90", pins) for v, pins in plans]
    keys = (*PLAN_KEYS, *PACKED_AND_ORDERED)
    build([*requests, *(BuildRequest(parse_key(key), "forward", SM90) for key in keys)])


def check(kernel, shapes, device, **options):
    for shape in shapes:
        found = compare_call(kernel, shape, device, **options)
        wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
        assert not wrong, f"{kernel.variant.key} {shape}: " + "; ".join(wrong)


@pytest.fixture(scope="module")
def wide():
    """What of head sizes above 128 has no pins to try, built at once."""
    wide = [parse_key(key) for key in WIDE_KEYS]
    build([BuildRequest(v, name, SM90, "sm90") for v in wide for name in ("forward", "backward")])


@pytest.mark.parametrize("key", WIDE_KEYS)
@pytest.mark.usefixtures("wide")
def test_head_sizes_above_128(device, key):
    kernel = Kernel(parse_key(key), device, family="sm90")
    check(kernel, SHAPES, device)


@pytest.mark.parametrize("key", PLAN_KEYS)
@pytest.mark.usefixtures("built")
def test_plans_of_the_tuner(device, key):
    head_dim, dtype = parse_key(key).head_dim, parse_key(key).dtype
    for pins in pins_of(key):
        (spec,) = load_specs(f"head_dim: {head_dim}\ndtype: {dtype}\n", "pinned.yaml")
        tuning = tuple(Pin("sm90", "backward", name, value, 0, 0) for name, value in pins)
        kernel = Kernel(parse_key(key), device, spec=replace(spec, tuning=tuning), family="sm90")
        check(kernel, SHAPES, device)


@pytest.mark.parametrize("key", PACKED_AND_ORDERED)
@pytest.mark.usefixtures("built")
def test_packed_and_deterministic_variants(device, key):
    kernel = Kernel(parse_key(key), device, family="sm90")
    shapes = (*SHAPES, Shape(9, 4, 1, 700, 700))
    check(kernel, shapes, device, dropout_p=0.3 if "dropout" in key else 0.0)


@pytest.mark.usefixtures("built")
def test_packed_sequences_keep_out_of_each_other(device):
    """No NaN of a sequence, or of rows behind the last, reaches another one's gradients."""
    kernel = Kernel(parse_key("d128-bf16-varlen-causal"), device, family="sm90")
    starts = torch.tensor((0, 40, 350, 350, 355, 1000), device=device)

    def gradients(own):
        torch.manual_seed(0)
        q, k, v, dout = (torch.randn(1100, 4, 128, device=device).bfloat16() for _ in range(4))
        for tensor in (q, k, v, dout):
            tensor[40:350] = own
            tensor[1000:] = own
        packed = {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
        out, lse, _ = kernel.forward(q, k, v, **packed)
        return kernel.backward(dout, q, k, v, out, lse, **packed)

    clean, other = gradients(1.0), gradients(float("nan"))
    for name in ("dq", "dk", "dv"):
        found, wanted = getattr(other, name), getattr(clean, name)
        assert found[40:350].isnan().any() and not found[1000:].any()
        same = torch.equal if name != "dq" else lambda x, y: torch.allclose(x, y, atol=1e-2)
        assert same(found[:40], wanted[:40]) and same(found[350:1000], wanted[350:1000])


@pytest.mark.parametrize("key", [key for key in PACKED_AND_ORDERED if key.endswith("-det")])
@pytest.mark.usefixtures("built")
def test_every_call_gives_the_same_bits(device, key):
    kernel = Kernel(parse_key(key), device, family="sm90")
    for shape in (Shape(4, 16, 4, 2048, 2048), Shape(2, 3, 3, 5000, 700)):
        if kernel.variant.layout == "varlen":
            shape = replace(shape, seqlen_q=1000)
        data = random_inputs(kernel.variant, shape, device, seed=1)
        dropout = {"dropout_p": 0.2, "seed": 3, "offset": 0} if "dropout" in key else {}
        out, lse, rng_state = kernel.forward(data.q, data.k, data.v, **data.arguments, **dropout)
        more = {"dropout_p": 0.2, "rng_state": rng_state} if dropout else {}
        tensors = (data.dout, data.q, data.k, data.v, out, lse)
        first = kernel.backward(*tensors, **data.arguments, **more)
        for _ in range(5):
            again = kernel.backward(*tensors, **data.arguments, **more)
            for name in ("dq", "dk", "dv"):
                assert torch.equal(getattr(again, name), getattr(first, name)), (name, shape)


def test_gradients_of_captures(device):
    """Every spec of the catalogue that has some, at its own head size and at 128."""
    specs = Catalogue.load().entries
    learning = [entry for entry in specs if program_for(entry.variant).gradients]
    kernels = []
    for entry in learning:
        case = catalogue_cases.CASES.get(entry.spec.name)
        if case is None or entry.variant.dtype not in ("fp16", "bf16"):
            continue
        kernels.append((case, entry.variant))
        kernels.append((case, replace(entry.variant, head_dim=128, head_dim_v=128)))
        if entry.variant.head_dim <= 64:
            kernels.append((case, replace(entry.variant, deterministic=True)))
    assert len(kernels) >= 20
    build(
        [
            BuildRequest(v, name, SM90, "sm90")
            for _, v in kernels
            for name in ("forward", "backward")
        ]
    )
    for case, variant in kernels:
        kernel = Kernel(variant, device, family="sm90")
        catalogue_cases.check_kernel(kernel, case, device, backward=True)
