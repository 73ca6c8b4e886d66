"""The cpu family's programs where no comparison with a reference looks: NaN, order, size."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_unit import kernels, poisoned

from flashgen.generator.spec import load_specs
from flashgen.runtime import passes
from flashgen.runtime.samples import Shape, random_inputs
from flashgen.runtime.verify import compare_call

HIDDEN = "mask: 'q_idx % 4 != 2 and kv_idx % 5 != 2 and kv_idx >= 20'"
SPECS = {
    "hidden": f"dtype: fp64\n{HIDDEN}",
    "hidden-scored": f"""dtype: fp64
dropout: true
captures: {{weight: {{dims: [seqlen_k], dtype: fp32, grad: true}}}}
score: 'score * weight[kv_idx]'
{HIDDEN}""",
    "hidden-packed": f"dtype: fp32\nlayout: varlen\n{HIDDEN}",
    "sums": """dtype: fp32
captures:
  table: {dims: [64], dtype: fp32, grad: true}
  bias: {dims: [batch, num_heads, seqlen_q, seqlen_k], dtype: fp32, grad: true}
  weight: {dims: [seqlen_k], dtype: fp32, grad: true}
  slope: {dims: [num_heads], dtype: fp32, grad: true}
score: 'score * slope[h] + table[abs(q_idx - kv_idx) % 64] + bias[b, h, q_idx, kv_idx]
        + weight[q_idx] * weight[kv_idx]'""",
    "every": """dtype: fp64
dropout: true
sink: {per: head, grad: true}
captures:
  table: {dims: [4], dtype: fp64, grad: true}
  weight: {dims: [seqlen_k], dtype: fp64, grad: true}
  slope: {dims: [num_heads], dtype: fp64, grad: true}
mask: 'kv_idx <= q_idx + 2'
score: 'tanh(score * slope[h]) + table[(q_idx - kv_idx) % 4] * weight[kv_idx]'""",
    "documents": """dtype: fp64
captures: {doc: {dims: [seqlen_k], dtype: int32}}
mask: 'doc[q_idx] == doc[kv_idx]'""",
    "unread": """dtype: fp32
captures: {length: {dims: [batch], dtype: fp32, grad: true}}
score: 'score + length[b] * 0.5'""",
    "softcap": "dtype: fp32\nsoftcap: 3.0\nalibi: true",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    variants = []
    for text in SPECS.values():
        (spec,) = load_specs(f"head_dim: 16\n{text}\n", "test.yaml")
        variants += spec.variants
    found = kernels(variants, tmp_path_factory.mktemp("cpu-programs"), units=2)
    return dict(zip(SPECS, found, strict=True))


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    monkeypatch.setattr(passes, "_like", poisoned)


def run(kernel, data, dropout_p=0.0):
    """Every result of both passes, by name."""
    options = {"dropout_p": dropout_p} | data.arguments
    out, lse, rng_state = kernel.forward(data.q, data.k, data.v, seed=7, **options)
    grads = kernel.backward(
        data.dout, data.q, data.k, data.v, out, lse, dlse=data.dlse, rng_state=rng_state, **options
    )
    found = {"out": out, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    return found | grads.captures


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["hidden", "hidden-scored"])
def test_r25_what_a_program_hides_never_leaks(built, name, value):
    kernel = built[name]
    p = 0.4 if kernel.variant.dropout else 0.0
    data = random_inputs(kernel.variant, Shape(2, 4, 2, 90, 90), "cpu")
    keys = [i for i in range(90) if i % 5 == 2 or i < 20]
    for tensor in (data.k, data.v):
        tensor[:, keys] = 0.0
    data.q[:, 2::4] = data.dout[:, 2::4] = 0.0
    expected = run(kernel, data, p)
    for tensor in (data.k, data.v):
        tensor[:, keys] = value
    data.q[:, 2::4] = data.dout[:, 2::4] = value
    found = run(kernel, data, p)
    for quantity, tensor in found.items():
        torch.testing.assert_close(tensor, expected[quantity], msg=quantity, rtol=1e-12, atol=1e-14)
    assert not found["dk"][:, keys].any() and not found["dv"][:, keys].any()
    assert not found["out"][:, 2::4].any() and not found["dq"][:, 2::4].any()


def test_r25_what_a_program_hides_never_leaks_where_sequences_are_packed(built):
    kernel = built["hidden-packed"]
    data = random_inputs(kernel.variant, Shape(3, 2, 2, 90, 90), "cpu")
    starts = data.arguments["cu_seqlens_k"].tolist()
    for begin, end in zip(starts, starts[1:], strict=False):
        hidden = [i for i in range(begin, end) if (i - begin) % 5 == 2 or i - begin < 20]
        data.k[hidden] = data.v[hidden] = math.nan
    data.k[starts[-1] :] = data.v[starts[-1] :] = math.nan
    found = run(kernel, data)
    assert not any(tensor.isnan().any() for tensor in found.values())
    assert not found["dk"][starts[-1] :].any() and not found["dv"][starts[-1] :].any()


def test_a_nan_that_is_seen_is_not_hidden(built):
    kernel = built["hidden"]
    data = random_inputs(kernel.variant, Shape(1, 1, 1, 90, 90), "cpu")
    data.k[:, 33] = data.v[:, 33] = math.nan
    found = run(kernel, data)
    seeing = [i for i in range(90) if i % 4 != 2]
    assert found["out"][:, seeing].isnan().all()
    assert found["dq"][:, seeing].isnan().all()
    assert not found["out"][:, 2::4].any(), "a query without keys has output 0, whatever is near"
    assert not found["dq"][:, 2::4].any()


def test_sums_do_not_depend_on_threads_or_order(built):
    kernel = built["sums"]
    data = random_inputs(kernel.variant, Shape(2, 4, 2, 150, 150), "cpu")
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3, 8, 8):
            torch.set_num_threads(threads)
            found.append(run(kernel, data))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for name, tensor in found[0].items():
            assert torch.equal(tensor, other[name]), name


def test_sums_that_threads_share(built):
    """A gradient too large for a copy of each thread; its entries are added to by atomics."""
    kernel = built["sums"]
    shape = Shape(1, 4, 4, 800, 800)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for name, found in compare_call(kernel, shape, "cpu").items():
            assert found.ok, f"{name}: {found}"
    finally:
        torch.set_num_threads(before)


def test_terms_of_very_different_sizes(built):
    """Small entries keep their digits beside terms a million times as large."""
    kernel = built["sums"]
    data = random_inputs(kernel.variant, Shape(1, 2, 2, 64, 64), "cpu")
    data.dout[:, 32:] *= 2.0**-20
    data.dlse[..., 32:] *= 2.0**-20
    found = run(kernel, data)["bias"]
    data.dout[:, :32] = 0.0
    data.dlse[..., :32] = 0.0
    alone = run(kernel, data)["bias"]
    torch.testing.assert_close(found[:, :, 32:], alone[:, :, 32:], rtol=1e-4, atol=1e-12)


def test_a_nan_term_is_a_nan_entry_and_no_other(built):
    kernel = built["sums"]
    data = random_inputs(kernel.variant, Shape(1, 2, 2, 70, 70), "cpu")
    data.dout[0, 5, 1, 3] = math.nan
    found = run(kernel, data)
    bias = found["bias"].isnan()
    assert bias[0, 1, 5].all()
    assert bias.sum() == 70
    assert found["slope"].isnan().tolist() == [False, True]


def test_gradcheck_of_everything(built):
    kernel = built["every"]
    data = random_inputs(kernel.variant, Shape(1, 4, 2, 5, 6), "cpu")
    arguments = dict(data.arguments)
    names = [n for n, t in arguments.items() if t.is_floating_point()]
    leaves = [data.q, data.k, data.v, *(arguments[n] for n in names)]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]

    def function(q, k, v, *captures):
        more = arguments | dict(zip(names, captures, strict=True))
        return kernel(q, k, v, dropout_p=0.25, seed=3, return_lse=True, **more)

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("name", ["documents", "unread", "softcap"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 131])
def test_edges_of_tiles(built, name, length):
    shape = Shape(2, 4, 2, length, length)
    for quantity, found in compare_call(built[name], shape, "cpu", seed=length).items():
        assert found.ok, f"{quantity}: {found}"


def test_nothing_grows_with_the_square_of_the_length(built):
    kernel = built["documents"]
    data = random_inputs(kernel.variant, Shape(1, 1, 1, 200_000, 200_000), "cpu")
    doc = (torch.arange(200_000) // 64).int()
    out, lse, _ = kernel.forward(data.q, data.k, data.v, doc=doc)
    last = slice(200_000 - 64, None)
    scores = (data.q[0, last, 0] @ data.k[0, last, 0].T) / 4
    torch.testing.assert_close(out[0, last, 0], scores.softmax(-1) @ data.v[0, last, 0])
    torch.testing.assert_close(lse[0, 0, last], scores.logsumexp(-1))
