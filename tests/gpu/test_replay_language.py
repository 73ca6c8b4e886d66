"""The replay cases that need the variant language, on the GPU, in the sizes reported."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from replay_cases import CASES, by_kernel, scale_of

from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES
from flashgen.runtime import reference
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.devices import target_of
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import Inputs
from flashgen.runtime.verify import compare_results

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]
R25 = (
    "head_dim: 64\ndtype: fp16\nwindow: {left: 100, right: 0}\ndeterministic: true\n"
    "captures: {bias: {dims: [seqlen_k], dtype: fp32, grad: true}}\n"
    "mask: kv_idx >= 64\nscore: 'score + bias[kv_idx]'\n"
)
BY_NAME = {case.name: case for case in CASES}


def variant_of(text):
    return load_specs(text, "test.yaml")[0].variants[0]


@pytest.fixture(scope="module")
def kernel_of(device):
    """Gives the kernel of a variant; all are built by then, in one go."""
    variants = {case.variant for case in CASES} | {variant_of(R25)}
    requests = [BuildRequest(v, name, target_of(device)) for v in variants for name in PASSES]
    build(sorted(requests, key=str))
    return lambda variant: Kernel(variant, device)


def judge(case, data, found):
    """Judge results by the error rule; what is NaN in the inputs belongs to no sequence."""
    clean = Inputs(
        *(t.nan_to_num(0.0) for t in (data.q, data.k, data.v, data.dout)),
        data.dlse,
        data.arguments,
    )
    results = compare_results(case.variant, clean, found, softmax_scale=scale_of(case))
    for name, result in results.items():
        assert result.ok, f"{case.name} {name}: {result}"


@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ("r05", "r12")])
def test_kernels_obey_the_error_rule(kernel_of, device, name):
    case = BY_NAME[name]
    data = case.inputs(device, full=True)
    found = by_kernel(case, kernel_of(case.variant), data)
    assert not any(tensor.isnan().any() for tensor in found.values())
    judge(case, data, found)


def test_r02_r17_rows_that_see_nothing_are_zero(kernel_of, device):
    for name, rows in (("r02", slice(110, 255)), ("r17", slice(944, 946))):
        case = BY_NAME[name]
        found = by_kernel(case, kernel_of(case.variant), case.inputs(device))
        assert not found["out"][rows].any() and not found["dq"][rows].any()
        assert (found["lse"][:, rows] == -math.inf).all()


def test_r05_eighty_thousand_sequences(kernel_of, device):
    case = BY_NAME["r05"]
    data = case.inputs(device, full=True)
    found = by_kernel(case, kernel_of(case.variant), data)
    assert all(tensor.isfinite().all() for tensor in found.values())
    tokens = 200 * 16
    for start in (0, len(data.q) // 2, len(data.q) - tokens):
        part = slice(start, start + tokens)
        ends = torch.arange(0, tokens + 1, 16, dtype=torch.int32, device=device)
        some = Inputs(
            *(t[part] for t in (data.q, data.k, data.v, data.dout)),
            data.dlse[:, part],
            {"cu_seqlens_q": ends, "cu_seqlens_k": ends},
        )
        cut = {name: t[:, part] if name == "lse" else t[part] for name, t in found.items()}
        judge(case, some, cut)


def test_r05_one_long_sequence(load, inputs):
    q, k, v, _ = inputs("d128-bf16-causal", 1, 71_280, 71_280, heads=3)
    out, lse, _ = load("d128-bf16-causal").forward(q, k, v)
    assert out.isfinite().all() and lse.isfinite().all()
    last = slice(-128, None)  # the last queries stand where they stood: causal is bottom-right
    data = Inputs(q[:, last], k, v, out[:, last], lse[:, :, last])
    case = replace(BY_NAME["r30"], spec="head_dim: 128\ndtype: bf16\ncausal: true\n")
    judge(case, data, {"out": out[:, last], "lse": lse[:, :, last]})


def test_r12_one_scale_of_all_scores(kernel_of, device):
    case = BY_NAME["r12"]
    data = case.inputs(device, full=True)
    found = by_kernel(case, kernel_of(case.variant), data)
    judge(case, data, found)


def test_r13_a_score_that_is_ignored_has_no_derivative(kernel_of, device):
    case = BY_NAME["r13"]
    found = by_kernel(case, kernel_of(case.variant), case.inputs(device))
    assert not found["dq"].any() and not found["dk"].any()
    assert found["dbias"].any() and found["dv"].any()


def test_r18_a_sink_of_one_query_and_key(kernel_of, device):
    case = BY_NAME["r18"]
    data = case.inputs(device)
    data.dlse.zero_()
    found = by_kernel(case, kernel_of(case.variant), data)
    for name in ("dq", "dk"):
        assert found[name][0, 0, 0, 0].item() == pytest.approx(0.39322387, rel=1e-3)
        assert not found[name][..., 1:].any()
    assert found["dsink"].item() == pytest.approx(-0.39322387, rel=1e-3)


@pytest.mark.parametrize("poison_value", [math.nan, math.inf])
def test_r25_what_is_masked_never_leaks(kernel_of, device, poison_value):
    kernel = kernel_of(variant_of(R25))
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size):
        return torch.randn(size, generator=generator, device=device)

    def run(q, k, v, dout, bias):
        out, lse, _ = kernel.forward(q, k, v, bias=bias)
        grads = kernel.backward(dout, q, k, v, out, lse, bias=bias)
        return out, lse, grads.dq, grads.dk, grads.dv, grads.captures["bias"]

    q, k, v, dout = (normal(2, n, 2, 64).half() for n in (150, 290, 290, 150))
    bias = normal(290)
    expected = run(q, k, v, dout, bias)
    for hidden in (slice(0, 64), slice(0, 40)):
        dirty = [t.clone() for t in (k, v)]
        for tensor in dirty:
            tensor[:, hidden] = poison_value
        for ours, theirs in zip(run(q, *dirty, dout, bias), expected, strict=True):
            assert torch.equal(ours, theirs)
    wild = bias.clone()
    wild[:64] = poison_value
    for ours, theirs in zip(run(q, k, v, dout, wild), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert not expected[-1][:64].any() and expected[-1][64:].any()


def test_packed_calls_do_not_wait_for_the_gpu(kernel_of, device):
    case = BY_NAME["r22"]
    data = case.inputs(device)
    kernel = kernel_of(case.variant)
    by_kernel(case, kernel, data)  # loads
    torch.cuda.set_sync_debug_mode("error")
    try:
        by_kernel(case, kernel, data)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_memory_grows_with_the_square_of_the_length(kernel_of, device):
    kernel = kernel_of(BY_NAME["r29-document"].variant)
    peaks = []
    for seqlen in (4096, 8192):
        q, k, v = (torch.randn(1, seqlen, 2, 64, device=device).bfloat16() for _ in range(3))
        doc = torch.arange(seqlen, device=device, dtype=torch.int32) // 1000
        for leaf in (q, k, v):
            leaf.requires_grad_()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kernel(q, k, v, doc=doc).sum().backward()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 2 * peaks[0] + 2**21


def test_the_reference_runs_on_the_gpu_too(device):
    case = BY_NAME["r29-prefix"]
    found = []
    for place in (device, torch.device("cpu")):
        data = case.inputs("cpu")
        tensors = [t.to(place) for t in (data.q, data.k, data.v, data.dout, data.dlse)]
        arguments = {name: value.to(place) for name, value in data.arguments.items()}
        problem = reference.Problem.of(case.variant, *tensors[:3], arguments)
        found.append(reference.evaluate(problem, *tensors[3:], dtype=torch.float64))
    torch.testing.assert_close(found[0].out.cpu(), found[1].out)
    torch.testing.assert_close(found[0].named("dk").cpu(), found[1].named("dk"))
