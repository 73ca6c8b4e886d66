"""Random programs' cpu kernels against the reference: out, lse and every gradient.

They are fp64, where no rounding moves a comparison of a program to its other side, and take every
preset and call in turn: dropout, sinks, packed sequences, block masks, windows, softcap, ALiBi.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from kernel_unit import kernels, poisoned
from strategies import random_program

from flashgen.generator.body import Body
from flashgen.generator.variant import Variant, Window
from flashgen.runtime import passes
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

COUNT = 320
UNITS = 8
PRESETS = (
    {},
    {"causal": True},
    {"sink": "learned"},
    {"dropout_bits": 8},
    {"layout": "varlen"},
    {"window": Window(9, 4), "softcap": 3.0},
    {"alibi": True, "causal": "top_left"},
    {"block_mask": (8, 24), "dropout_bits": 16},
    {"layout": "varlen", "sink": "learned", "dropout_bits": 8, "causal": True},
    {"window": Window(runtime=True), "softcap": "runtime", "sink": "fixed"},
)
SATURATED = 1e-17
"""An error like this is none: 1 - tanh(x)^2 has the rounding of 1, however small it is."""
SHAPES = (Shape(2, 4, 2, 37, 37), Shape(1, 2, 2, 1, 45), Shape(2, 2, 1, 50, 19))


def packed(body: Body) -> Body:
    """The same program on packed sequences."""
    dims = {"seqlen_q": "total_q", "seqlen_k": "total_k"}
    captures = (replace(c, dims=tuple(dims.get(dim, dim) for dim in c.dims)) for c in body.captures)
    return replace(body, captures=tuple(captures))


def variants() -> list[Variant]:
    rng = random.Random(20251202)
    found = []
    for index in range(COUNT):
        preset = PRESETS[index % len(PRESETS)]
        body = random_program(rng, depth=2 + index % 3)
        if preset.get("layout") == "varlen":
            body = packed(body)
        found.append(Variant(8, 8, "fp64", body=body, **preset))
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return kernels(variants(), tmp_path_factory.mktemp("random-kernels"), units=UNITS)


@pytest.mark.parametrize("index", range(COUNT))
def test_error_rule(built, index, monkeypatch):
    monkeypatch.setattr(passes, "_like", poisoned)
    kernel = built[index]
    for shape in SHAPES:
        for name, found in compare_call(kernel, shape, "cpu", dropout_p=0.4, seed=index).items():
            good = found.ok or found.max_error < SATURATED
            assert good, f"{kernel.key} {shape} {name}: {found}\n{kernel.variant.body}"
