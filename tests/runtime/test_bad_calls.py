"""Calls that no kernel can serve: each is flashgen's own error, in one sentence, before a build."""

from __future__ import annotations

import math

import pytest
import torch

import flashgen
from flashgen.generator.errors import ArgumentError
from flashgen.generator.variant import Variant
from flashgen.runtime import arguments

DENSE = torch.zeros(1, 8, 2, 64, dtype=torch.bfloat16)
BF16, FP64 = Variant(64, 64, "bf16"), Variant(64, 64, "fp64")


@pytest.mark.parametrize("name", [None, 3, b"d64-bf16", ["d64-bf16"]])
def test_load_of_what_is_no_name(name):
    with pytest.raises(ArgumentError, match=r"^load: name: expected a key .*, got \w+\. `flashgen"):
        flashgen.load(name)


@pytest.mark.parametrize("device", ["gpu", "", 3, "cuda:-1", 1.5])
def test_load_for_what_is_no_device(device):
    with pytest.raises(ArgumentError, match=r"^device: expected cpu, cuda, .*, got .*\. Leave"):
        flashgen.load("d64-bf16", device)


def test_load_takes_a_path(tmp_path):
    with pytest.raises(flashgen.generator.errors.SpecError, match="absent.yaml: expected"):
        flashgen.load(tmp_path / "absent.yaml")


@pytest.mark.parametrize("index", range(3))
def test_sparse_tensors(index):
    tensors = [DENSE, DENSE, DENSE]
    tensors[index] = DENSE.to_sparse()
    with pytest.raises(
        ArgumentError, match=r"expected a dense tensor, got torch.sparse_coo. Call to_dense"
    ):
        arguments.check_inputs(BF16, *tensors)


@pytest.mark.parametrize("scale", [1e39, -1e39, math.nan, math.inf, 10**400])
def test_a_scale_beyond_the_accumulator(scale):
    with pytest.raises(ArgumentError, match="finite number of torch.float32, got") as caught:
        arguments.scale_of(BF16, scale)
    assert len(str(caught.value)) < 200


def test_a_scale_that_its_accumulator_holds():
    assert arguments.scale_of(FP64, 1e39) == 1e39
    assert arguments.scale_of(BF16, -1e30) == -1e30


@pytest.mark.parametrize(
    ("option", "value"),
    [("causal", "no"), ("causal", 1), ("deterministic", None), ("dropout_p", "0.1"),
     ("dropout_p", True), ("dropout_p", math.nan), ("dropout_p", torch.tensor(0.1))],
)  # fmt: skip
def test_attention_with_an_option_of_another_type(option, value):
    with pytest.raises(ArgumentError, match=f"^attention: {option}: expected .*, got "):
        flashgen.attention(DENSE, DENSE, DENSE, **{option: value})
