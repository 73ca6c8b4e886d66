"""Inputs on which other attention systems failed, on the GPU; the ids name the replay cases."""

from __future__ import annotations

import math

import pytest
import torch

import flashgen
from flashgen.generator.errors import ArgumentError
from flashgen.generator.variant import parse_key
from flashgen.runtime import arguments
from flashgen.runtime.verify import Inputs, Shape, compare_call, compare_results

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]


def assert_right(key, tensors, found):
    """Judge results by the error rule on the very tensors of the call; dlse was zero."""
    data = Inputs(*tensors, torch.zeros_like(found["lse"]))
    for name, result in compare_results(parse_key(key), data, found).items():
        assert result.ok, f"{key} {name}: {result}"


def assert_equal(ours, theirs, names=("out", "lse", "dk", "dv")):
    for name in names:
        assert torch.equal(ours[name], theirs[name]), name


def test_r01_one_query_one_key(run, inputs):
    tensors = inputs("d16-fp16", 1, 1, 1, heads=1, factor=3.0)
    found = run("d16-fp16", *tensors)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_right("d16-fp16", tensors, found)


@pytest.mark.parametrize(
    ("key", "batch", "seqlen"), [("d128-fp16-causal", 8300, 1), ("d72-bf16", 28_800, 15)]
)
def test_r04_many_short_sequences(run, inputs, key, batch, seqlen):
    tensors = inputs(key, batch, seqlen, seqlen, heads=16)
    found = run(key, *tensors)
    assert all(tensor.isfinite().all() for tensor in found.values())
    for part in (slice(0, 300), slice(batch // 2, batch // 2 + 300), slice(batch - 300, batch)):
        part_of = {name: tensor[part] for name, tensor in found.items()}
        assert_right(key, [t[part] for t in tensors], part_of)


@pytest.mark.parametrize("key", ["d64-fp16-causal", "d128-bf16-causal", "d64-bf16-causal-det"])
def test_r07_queries_before_every_key(run, inputs, key):
    tensors = inputs(key, 1, 2048, 1024)
    found = run(key, *tensors)
    assert not found["out"][:, :1024].any() and not found["dq"][:, :1024].any()
    assert (found["lse"][:, :, :1024] == -math.inf).all()
    assert found["lse"][:, :, 1024:].isfinite().all()
    assert_right(key, tensors, found)


@pytest.mark.parametrize("seqlen", [64, 192, 704])
@pytest.mark.parametrize("key", ["d64-bf16-causal", "d64-bf16"])
def test_r08_lse_below_the_smallest_exponent(run, inputs, key, seqlen):
    q, k, v, dout = inputs(key, 1, seqlen, seqlen, heads=1)
    q, k = q * 0.1, k * 0.1
    q[..., 0], k[..., 0] = 1, -120 * 8
    found = run(key, q, k, v, dout)
    assert (found["lse"] < -104).all()  # e^lse is 0 in fp32
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_right(key, (q, k, v, dout), found)


def test_r09_scores_far_below_zero(run, inputs):
    q, k, v, dout = inputs("d64-bf16", 1, 1, 128, heads=1)
    q[..., 0], k[..., 0] = 8, -128
    found = run("d64-bf16", q, k, v, dout)
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_right("d64-bf16", (q, k, v, dout), found)


def test_r15_fewer_keys_after_a_call_on_all(run, inputs):
    key = "d64-fp16"
    q, k, v, dout = inputs(key, 1, 256, 4096, heads=16)
    run(key, q, k, v, dout)
    tensors = (q, k[:, :-128], v[:, :-128], dout)
    assert_right(key, tensors, run(key, *tensors))


def test_r16_a_last_dimension_that_is_not_contiguous(run):
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = []
    for _ in range(4):
        base = torch.randn(25 * 307_200, generator=generator, device="cuda").half()
        heads_first = base.as_strided((25, 8, 1200, 32), (307_200, 1, 256, 8))
        tensors.append(heads_first.transpose(1, 2))
    found = run("d32-fp16", *tensors)
    assert_equal(found, run("d32-fp16", *(t.contiguous() for t in tensors)))
    assert_right("d32-fp16", [t[:4] for t in tensors], {n: t[:4] for n, t in found.items()})


@pytest.mark.parametrize("key", ["d8-fp16-causal", "d40-bf16", "d72-bf16", "d80-bf16-causal"])
def test_r19_small_native_sizes(load, device, key):
    for name, found in compare_call(load(key), Shape(2, 4, 2, 333, 333), device).items():
        assert found.ok, f"{key} {name}: {found}"


@pytest.mark.parametrize("head_dim", [31, 100])
def test_r19_sizes_that_are_no_multiple_of_8(load, inputs, head_dim):
    key = "d32-bf16-causal" if head_dim == 31 else "d104-fp16-causal"
    load(key)
    tensors = [t[..., :head_dim].contiguous() for t in inputs(key, 2, 130, 200)]
    *leaves, dout = tensors
    with pytest.raises(ArgumentError, match=r"flashgen\.attention, which pads"):
        load(key)(*leaves)
    leaves = [t.clone().requires_grad_() for t in leaves]
    out, lse = flashgen.attention(*leaves, causal=True, return_lse=True)
    grads = torch.autograd.grad(out, leaves, dout)
    ours = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))
    assert_right(key, tensors, {name: tensor.detach() for name, tensor in ours.items()})


@pytest.mark.parametrize(("batch", "heads"), [(65_537, 1), (1, 65_537), (70_000, 2)])
def test_r24_more_sequences_or_heads_than_a_grid_holds(load, device, batch, heads):
    shape = Shape(batch, heads, heads, 3, 5)
    for name, found in compare_call(load("d8-fp16-causal"), shape, device).items():
        assert found.ok, f"{shape} {name}: {found}"


@pytest.mark.parametrize("poisonous", [math.nan, math.inf])
def test_r25_what_no_query_may_see_never_leaks(run, inputs, built_key, poisonous):
    p = 0.2 if parse_key(built_key).dropout else 0.0
    tensors = inputs(built_key, 2, 70, 150)
    clean = run(built_key, *tensors, dropout_p=p, seed=1)
    wide = [torch.cat([t, torch.full_like(t, poisonous)], 1) for t in tensors]
    views = [w[:, : t.shape[1]] for w, t in zip(wide, tensors, strict=True)]
    found = run(built_key, *views, dropout_p=p, seed=1)
    assert_equal(found, clean)
    assert found["dq"].isfinite().all()


@pytest.mark.parametrize("key", ["d64-bf16-causal-det", "d128-fp16-det", "d256-bf16-det"])
@pytest.mark.parametrize("row", [0, 100, 199])
def test_a_nan_query_has_nan_outputs_and_no_other_has(run, inputs, key, row):
    q, k, v, dout = inputs(key, 1, 200, 230)
    clean = run(key, q, k, v, dout)["out"]
    q[:, row, 0, 3] = math.nan
    out = run(key, q, k, v, dout)["out"]
    assert out[:, row, 0].isnan().all()
    clean[:, row, 0] = out[:, row, 0] = 0
    assert torch.equal(out, clean)


@pytest.mark.parametrize("key", ["d64-bf16-causal-det", "d64-bf16-causal"])
@pytest.mark.parametrize("poisonous", [math.nan, math.inf])
def test_a_gradient_of_the_lse_of_a_query_without_keys_is_not_read(run, inputs, key, poisonous):
    q, k, v, dout = inputs(key, 1, 150, 70)
    dlse = torch.randn(1, 2, 150, device=q.device)
    clean = run(key, q, k, v, dout, dlse)
    dlse[:, :, :80] = poisonous
    found = run(key, q, k, v, dout, dlse)
    assert not found["dq"][:, :80].any()
    assert found["dq"].isfinite().all()
    assert_equal(found, clean)


def test_a_nan_that_a_query_sees_reaches_its_output(run, inputs):
    q, k, v, dout = inputs("d64-fp16-causal", 1, 200, 200, heads=1)
    k[:, 199] = math.nan
    out = run("d64-fp16-causal", q, k, v, dout)["out"]
    assert out[:, 199].isnan().all()
    assert out[:, :199].isfinite().all()


def test_r26_transposed_and_packed_views_need_no_copies(run, inputs):
    key = "d256-bf16"
    tensors = inputs(key, 1, 8192, 8192, heads=32)
    expected = run(key, *tensors)
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    packed = torch.stack(tensors[:3], 2)  # (batch, seqlen, 3, heads, head_dim)
    for views in (transposed, [*packed.unbind(2), tensors[3]]):
        assert all(arguments.usable(view) is view for view in views)
        assert_equal(run(key, *views), expected)
    few = [t[:, :, :2] for t in tensors]
    assert_right(key, few, run(key, *few))


@pytest.mark.parametrize(
    "key", ["d64-fp16-causal", "d128-bf16", "d64-bf16-causal-dropout", "d256-fp16-causal"]
)
def test_r27_the_same_call_250_times(run, inputs, key):
    p = 0.2 if parse_key(key).dropout else 0.0
    tensors = inputs(key, 2, 500, 700, heads=4)
    expected = run(key, *tensors, dropout_p=p, seed=1)
    for _ in range(250):
        assert_equal(run(key, *tensors, dropout_p=p, seed=1), expected)


@pytest.mark.parametrize(
    "key", ["d64-bf16-causal-det", "d128-fp16-det", "d256-bf16-det", "d72-fp16-causal-dropout-det"]
)
def test_r27_deterministic_gradients_with_shared_keys(run, inputs, key):
    p = 0.2 if parse_key(key).dropout else 0.0
    tensors = inputs(key, 2, 500, 700, heads=8, heads_kv=2)
    expected = run(key, *tensors, dropout_p=p, seed=1)
    for _ in range(250):
        assert_equal(run(key, *tensors, dropout_p=p, seed=1), expected, tuple(expected))


def test_offsets_pass_two_to_the_31(run, inputs):
    key = "d16-fp16"
    tensors = inputs(key, 2, 20, 20)
    step = 2**31 + 64
    pool = torch.empty(step + 2**16, dtype=torch.float16, device="cuda")
    views = []
    for i, tensor in enumerate(tensors):
        view = pool[i * 2**12 :].as_strided(tensor.shape, (step, *tensor.stride()[1:]))
        views.append(view.copy_(tensor))
    assert_equal(run(key, *views), run(key, *tensors))


def test_results_that_pass_two_to_the_31(run, inputs):
    key, batch = "d256-fp16-causal", 131_073  # * 64 * 256 elements in each result
    one = inputs(key, 1, 64, 64, heads=1)
    found = run(key, *(t.expand(batch, -1, -1, -1) for t in one))
    for name, tensor in found.items():
        assert torch.equal(tensor, tensor[:1].expand_as(tensor)), name
    assert_right(key, one, {name: tensor[-1:] for name, tensor in found.items()})


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_empty_sizes(run, inputs, batch, seqlen_q, seqlen_k):
    found = run("d64-fp16-causal", *inputs("d64-fp16-causal", batch, seqlen_q, seqlen_k))
    assert (found.pop("lse") == -math.inf).all()
    assert not any(tensor.any() for tensor in found.values())
