"""Kernels for this machine's GPU, all built at once before the first test, and how to run them."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch

import flashgen
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime import passes as passes_module
from flashgen.runtime.arguments import TORCH_DTYPES
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.devices import target_of

SIZES = ("d8", "d40", "d64", "d72", "d96", "d128", "d192", "d256", "d192v128")
OPTIONS = ("", "-causal", "-dropout", "-causal-dropout")
HALF = {"fp16": ("-causal", "-dropout"), "bf16": ("", "-causal-dropout")}
"""Every size with every option, and with either dtype both with and without each option."""
GRID = tuple(
    f"{size}-{dtype}{option}"
    for size, dtype, option in itertools.product(SIZES, TORCH_DTYPES, OPTIONS)
    if dtype in HALF and (option in HALF[dtype] or size in ("d64", "d128"))
)
MORE = (
    "d16-fp16",
    "d32-fp16",
    "d32-bf16-causal",
    "d80-bf16-causal",
    "d104-fp16-causal",
    "d160-fp16",
    "d224-bf16-causal",
    "d64-fp16-dropout16",
    "d64-bf16-causal-det",
    "d128-fp16-det",
    "d256-bf16-det",
    "d72-fp16-causal-dropout-det",
    "d256v16-bf16-causal",  # two warps share one block of dV's columns
    "d16v192-fp16-dropout",
    "d192v8-bf16-det",
)


def pytest_generate_tests(metafunc):
    """`grid_key` walks over the grid; `built_key` over all that the fixture builds."""
    for name, keys in (("grid_key", GRID), ("built_key", GRID + MORE)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, keys)


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def hopper(device):
    """Skips what family sm90 alone runs, elsewhere."""
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("needs compute capability 9.0")


@pytest.fixture(scope="session")
def load(device):
    """Gives the kernel of a key; every key of these tests is built by then, in one go."""
    target = target_of(device)
    build([BuildRequest(parse_key(key), name, target) for key in GRID + MORE for name in PASSES])
    return functools.cache(lambda key: flashgen.load(key, device))


@pytest.fixture
def poison(monkeypatch):
    """Every result and workspace starts as NaN: what a kernel leaves unwritten is seen."""

    def poisoned(pattern):
        value = 0xFF if pattern.dtype == torch.uint8 else math.nan
        return torch.full_like(pattern, value, memory_format=torch.contiguous_format)

    monkeypatch.setattr(passes_module, "_like", poisoned)


@pytest.fixture
def inputs(device):
    """Makes (q, k, v, dout) of normal values times ``factor`` for a key."""

    def make(key, batch, seqlen_q, seqlen_k, heads=2, heads_kv=None, factor=1.0, seed=0):
        variant = parse_key(key)
        generator = torch.Generator(device).manual_seed(seed)
        heads_kv = heads_kv or heads

        def normal(*shape):
            values = torch.randn(shape, generator=generator, device=device) * factor
            return values.to(TORCH_DTYPES[variant.dtype])

        return (
            normal(batch, seqlen_q, heads, variant.head_dim),
            normal(batch, seqlen_k, heads_kv, variant.head_dim),
            normal(batch, seqlen_k, heads_kv, variant.head_dim_v),
            normal(batch, seqlen_q, heads, variant.head_dim_v),
        )

    return make


@pytest.fixture
def run(load):
    """Runs both passes; gives every result by name."""

    def both(key, q, k, v, dout, dlse=None, **options):
        kernel = load(key)
        out, lse, rng_state = kernel.forward(q, k, v, **options)
        options = {n: o for n, o in options.items() if n not in ("seed", "offset")}
        grads = kernel.backward(dout, q, k, v, out, lse, dlse=dlse, rng_state=rng_state, **options)
        return {"out": out, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}

    return both
