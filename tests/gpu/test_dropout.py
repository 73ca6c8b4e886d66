"""Dropout on the GPU: the mask is the written definition, bit for bit, in both passes."""

from __future__ import annotations

import math

import pytest
import torch
from dropout_probe import kept_by_backward, kept_by_forward

from flashgen.generator.variant import parse_key
from flashgen.runtime.philox import dropout_threshold, keep_mask

pytestmark = pytest.mark.gpu

KEYS = (
    "d8-fp16-dropout",
    "d64-fp16-dropout",
    "d64-fp16-dropout16",
    "d64-bf16-causal-dropout",
    "d128-bf16-causal-dropout",
    "d128-fp16-dropout",
    "d192v128-fp16-dropout",
    "d256-fp16-dropout",
    "d72-fp16-causal-dropout-det",
)
PAIRS = ((7, 0), (2**64 - 1, 2**34 + 9), (2**63 + 5, 4), (0x0123456789ABCDEF, 2**63 - 1))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("key", KEYS)
def test_mask_is_the_definition(load, inputs, key, p):
    kernel = load(key)
    bits = parse_key(key).dropout_bits
    for (seqlen_q, seqlen_k), (seed, offset) in zip(
        ((150, 200), (33, 129), (200, 70), (1, 65)), PAIRS, strict=True
    ):
        q, k, v, _ = inputs(key, 2, seqlen_q, seqlen_k, heads=3)
        q = q * 0  # all weights are equal, so that none rounds to 0
        threshold = dropout_threshold(p, bits)
        keep = keep_mask(seed, offset, 2, 3, seqlen_q, seqlen_k, threshold, bits, q.device)
        if kernel.variant.causal:
            ones = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
            keep &= ones.tril(seqlen_k - seqlen_q)
        assert torch.equal(kept_by_forward(kernel, q, k, p, seed, offset), keep)
        v = v.abs() + 1
        assert torch.equal(kept_by_backward(kernel, q, k, v, p, seed, offset), keep)


def test_a_fine_probability_needs_16_bits(load, inputs):  # R28
    q, k, v, _ = inputs("d64-fp16-dropout16", 1, 300, 300)
    kept = kept_by_forward(load("d64-fp16-dropout16"), q * 0, k, 0.001, 3, 0)
    realised = dropout_threshold(0.001, 16) / 65_536
    sigma = math.sqrt(realised * (1 - realised) / kept.numel())
    assert abs((~kept).double().mean().item() - realised) <= 4 * sigma
    with pytest.raises(ValueError, match="dropout16"):
        load("d64-fp16-dropout").forward(q, k, v, dropout_p=0.001)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_mean_over_seeds_is_the_undropped_output(load, inputs, p):  # R28
    kernel = load("d64-fp16-dropout")
    q, k, v, _ = inputs(kernel.key, 1, 64, 96)
    expected = kernel.forward(q, k, v).out.double()
    outs = torch.stack(
        [kernel.forward(q, k, v, dropout_p=p, seed=s).out.double() for s in range(512)]
    )
    error = (outs.mean(0) - expected).abs() / (outs.std(0) / math.sqrt(len(outs)))
    assert error.max().item() <= 6  # sigmas; 8192 elements
    assert error.square().mean().item() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("key", ["d64-fp16-causal-dropout", "d72-fp16-causal-dropout-det"])
def test_dropping_everything(load, run, inputs, key):
    tensors = inputs(key, 1, 140, 150)
    found = run(key, *tensors, dropout_p=1.0, seed=1)
    assert torch.equal(found["lse"], run(key, *tensors)["lse"])
    assert not any(found[name].any() for name in ("out", "dq", "dk", "dv"))


def test_seeds_as_tensors(load, inputs, device):
    kernel = load("d64-fp16-dropout")
    q, k, v, _ = inputs(kernel.key, 1, 100, 100)
    by_ints = kernel.forward(q, k, v, dropout_p=0.2, seed=2**64 - 9, offset=12)
    seed = torch.tensor(-9, device=device)
    by_tensors = kernel.forward(
        q, k, v, dropout_p=0.2, seed=seed, offset=torch.tensor(12, device=device)
    )
    mixed = kernel.forward(q, k, v, dropout_p=0.2, seed=seed, offset=12)
    for other in (by_tensors, mixed):
        assert torch.equal(other.out, by_ints.out)
        assert other.rng_state.tolist() == [-9, 12]
    next_one = kernel.forward(q, k, v, dropout_p=0.2, seed=2**64 - 9, offset=16)
    assert not torch.equal(next_one.out, by_ints.out)
    with pytest.raises(ValueError, match="0-dim torch.int64 tensor on cuda"):
        kernel.forward(q, k, v, dropout_p=0.2, seed=torch.tensor(3))


def test_torch_seeds_the_calls(load, inputs):
    kernel = load("d64-fp16-dropout")
    q, k, v, _ = inputs(kernel.key, 1, 100, 100)
    torch.manual_seed(5)
    first, second = (kernel(q, k, v, dropout_p=0.2) for _ in range(2))
    torch.manual_seed(5)
    again = kernel(q, k, v, dropout_p=0.2)
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_autograd_uses_the_state_of_its_forward(load, inputs):
    kernel = load("d64-fp16-causal-dropout")
    q, k, v, dout = inputs(kernel.key, 1, 130, 130)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    torch.manual_seed(1)
    out = kernel(*leaves, dropout_p=0.3)
    kernel(q, k, v, dropout_p=0.3)  # moves the generator on in between
    out.backward(dout)
    torch.manual_seed(1)
    found = kernel.forward(q, k, v, dropout_p=0.3)
    grads = kernel.backward(
        dout, q, k, v, found.out, found.lse, dropout_p=0.3, rng_state=found.rng_state
    )
    assert torch.equal(found.out, out)
    assert torch.equal(leaves[1].grad, grads.dk) and torch.equal(leaves[2].grad, grads.dv)
