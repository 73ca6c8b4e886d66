"""Both passes against the fp64 reference on the GPU, over the whole grid of variants."""

from __future__ import annotations

import pytest
import torch

from flashgen.runtime.verify import Shape, compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]

LENGTHS = (
    (1, 1),
    (1, 4097),
    (4097, 1),
    (2, 3),
    (15, 15),
    (17, 65),
    (64, 64),
    (65, 129),
    (127, 300),
    (128, 128),
    (300, 127),
    (513, 1023),
    (1025, 640),
)
GROUPS = (1, 4, 8)


def assert_close(load, device, key, shape, **options):
    found = compare_call(load(key), shape, device, **options)
    wrong = [f"{name}: {one}" for name, one in found.items() if not one.ok]
    assert not wrong, f"{key} {shape} {options}: " + "; ".join(wrong)


def test_short_and_awkward_lengths(load, device, built_key):
    for i, (seqlen_q, seqlen_k) in enumerate(LENGTHS):
        shape = Shape(2, 8, 8 // GROUPS[i % len(GROUPS)], seqlen_q, seqlen_k)
        assert_close(load, device, built_key, shape, dropout_p=0.3, seed=i)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(4097, 4097), (2048, 4096), (4096, 2000)])
def test_long(load, device, grid_key, seqlen_q, seqlen_k):
    assert_close(load, device, grid_key, Shape(1, 4, 1, seqlen_q, seqlen_k), dropout_p=0.1)


@pytest.mark.parametrize("key", ["d64-fp16", "d64-bf16-causal", "d128-bf16", "d128-fp16-causal"])
def test_many_blocks(load, device, key):
    assert_close(load, device, key, Shape(8, 32, 8, 515, 515))


@pytest.mark.parametrize("seqlen", [*range(1, 34), 63, 65, 95, 97, 127, 129, 191, 193, 255, 257])
def test_every_remainder(load, device, seqlen):
    for key in ("d64-bf16-causal", "d128-fp16-dropout"):
        assert_close(load, device, key, Shape(1, 2, 2, seqlen, seqlen))
        assert_close(load, device, key, Shape(1, 2, 1, 130, seqlen))
        assert_close(load, device, key, Shape(1, 2, 1, seqlen, 130))


@pytest.mark.parametrize("scale", [-0.3, 0.0, 1e-3, 2.0, 1e-39, 1e-45, -1e-60, 1e-310])
@pytest.mark.parametrize("key", ["d64-fp16", "d128-bf16-causal", "d72-fp16-causal-dropout-det"])
def test_softmax_scale(load, device, key, scale):
    assert_close(load, device, key, Shape(1, 2, 1, 170, 190), softmax_scale=scale)


@pytest.mark.parametrize("key", ["d64-fp16", "d128-bf16-causal", "d256-bf16-causal-dropout"])
def test_large_values(load, device, key):
    assert_close(load, device, key, Shape(1, 2, 1, 170, 190), factor=3.0)


def test_calls_without_the_gradient_of_lse(load, run, inputs):
    for key in ("d64-fp16-causal", "d64-bf16-causal-det"):
        q, k, v, dout = inputs(key, 1, 200, 200)
        zeros = torch.zeros(1, 2, 200, device=q.device)
        without, with_zeros = run(key, q, k, v, dout), run(key, q, k, v, dout, zeros)
        for name in ("out", "lse", "dk", "dv"):
            assert torch.equal(without[name], with_zeros[name]), (key, name)
