"""Family sm75 on a newer GPU, whose driver compiles its PTX: correct, feature by feature."""

from __future__ import annotations

import functools

import pytest
import torch
from catalogue_cases import CASES, check_kernel
from dropout_probe import kept_by_backward, kept_by_forward

from flashgen.generator.arch import TARGETS
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.philox import dropout_threshold, keep_mask
from flashgen.runtime.verify import Shape, compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]

KEYS = (  # every plan of the family, and sizes that are no multiple of 16
    "d8-fp16-causal",
    "d40-fp16-dropout",
    "d64-fp16",
    "d64-fp16-causal-dropout",
    "d72-fp16-causal-det",
    "d96-fp16-causal",
    "d120-fp16",
    "d128-fp16-causal",
    "d128-fp16-causal-dropout-det",
    "d160-fp16-dropout16",
    "d192v128-fp16-causal",
    "d224-fp16-causal-dropout",
    "d256-fp16-causal",
    "d256-fp16-dropout-det",
)
PACKED = "head_dim: 64\ndtype: fp16\nlayout: varlen\ncausal: true\ndropout: true\n"
EVERYTHING = (
    "head_dim: 64\ndtype: fp16\nwindow: {left: 100, right: 0}\ndeterministic: true\n"
    "sink: {per: head, grad: true}\n"
    "captures: {bias: {dims: [num_heads, seqlen_k], dtype: fp32, grad: true}}\n"
    "mask: kv_idx != 5\nscore: 'score + bias[h, kv_idx]'\n"
)
NAMED = ("longformer", "padding", "alibi", "graphormer", "swin", "temperature", "neighborhood")
"""Specs of the catalogue, in fp16: tile tests, captures with and without gradients."""
SHAPES = (Shape(2, 4, 2, 150, 200), Shape(1, 3, 1, 333, 65), Shape(1, 2, 2, 1, 130))


def entry_of(name):
    found = [e for e in Catalogue.load().entries if e.spec.name == name]
    return next(e for e in found if e.variant.dtype == "fp16")


def variant_of(text):
    return load_specs(text, "test.yaml")[0].variants[0]


@pytest.fixture(scope="module")
def kernel_of(device):
    """Gives the kernel of a variant; all are built by then, in one go."""
    variants = [parse_key(key) for key in KEYS] + [variant_of(PACKED), variant_of(EVERYTHING)]
    variants += [entry_of(name).variant for name in NAMED]
    build([BuildRequest(v, name, TARGETS["sm75"]) for v in variants for name in PASSES])
    return functools.cache(lambda variant: Kernel(variant, device, family="sm75"))


def assert_right(kernel, device):
    for shape in SHAPES:
        for name, found in compare_call(kernel, shape, device).items():
            assert found.ok, f"{kernel.key} {name} {shape}: {found}"


@pytest.mark.parametrize("key", KEYS)
def test_error_rule(kernel_of, device, key):
    kernel = kernel_of(parse_key(key))
    assert kernel.target.name == "sm75"
    assert_right(kernel, device)


@pytest.mark.parametrize("text", [PACKED, EVERYTHING], ids=["packed", "everything"])
def test_error_rule_with_the_language(kernel_of, device, text):
    assert_right(kernel_of(variant_of(text)), device)


@pytest.mark.parametrize("name", NAMED)
def test_error_rule_of_the_catalogue(kernel_of, device, name):
    check_kernel(kernel_of(entry_of(name).variant), CASES[name], device, backward=True)


@pytest.mark.parametrize("key", [key for key in KEYS if "dropout" in key])
def test_dropout_is_the_definition(kernel_of, inputs, key):
    kernel, bits = kernel_of(parse_key(key)), parse_key(key).dropout_bits
    q, k, v, _ = inputs(key, 2, 150, 200, heads=3)
    q = q * 0  # all weights are equal, so that none rounds to 0
    keep = keep_mask(7, 12, 2, 3, 150, 200, dropout_threshold(0.3, bits), bits, q.device)
    if kernel.variant.causal:
        keep &= torch.ones(150, 200, dtype=torch.bool, device=q.device).tril(50)
    assert torch.equal(kept_by_forward(kernel, q, k, 0.3, 7, 12), keep)
    assert torch.equal(kept_by_backward(kernel, q, k, v.abs() + 1, 0.3, 7, 12), keep)


@pytest.mark.parametrize("key", ["d72-fp16-causal-det", "d256-fp16-dropout-det"])
def test_deterministic_gradients_repeat(kernel_of, inputs, key):
    kernel = kernel_of(parse_key(key))
    q, k, v, dout = inputs(key, 2, 300, 300, heads=4, heads_kv=2)
    out, lse, _ = kernel.forward(q, k, v)
    first, *others = (kernel.backward(dout, q, k, v, out, lse)[:3] for _ in range(5))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
