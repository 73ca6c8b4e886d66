"""Inputs on which other attention systems failed, on the cpu family, in smaller sizes."""

from __future__ import annotations

import math

import pytest
import torch
from replay_cases import CASES, by_formula, by_kernel, scale_of

from flashgen.generator.arch import parse_target
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES
from flashgen.runtime import passes as passes_module
from flashgen.runtime import reference
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.cache import Cache
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import Inputs
from flashgen.runtime.verify import compare_results

R15 = "head_dim: 64\ndtype: fp16\n"
R25 = (
    "head_dim: 64\ndtype: fp32\nwindow: {left: 100, right: 0}\n"
    "captures: {bias: {dims: [seqlen_k], dtype: fp32, grad: true}}\n"
    "mask: kv_idx >= 64\nscore: 'score + bias[kv_idx]'\n"
)


def variant_of(text):
    return load_specs(text, "test.yaml")[0].variants[0]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Gives the cpu kernel of a variant; all are built by then, and results start as NaN."""
    root = tmp_path_factory.mktemp("replay")

    def poisoned(pattern):
        value = 0xFF if pattern.dtype == torch.uint8 else math.nan
        return torch.full_like(pattern, value, memory_format=torch.contiguous_format)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(root))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.setattr(passes_module, "_like", poisoned)
        variants = {case.variant for case in CASES} | {variant_of(R15), variant_of(R25)}
        target = parse_target("cpu")
        requests = [BuildRequest(v, name, target) for v in variants for name in PASSES]
        build(sorted(requests, key=str), cache=Cache(root))
        yield lambda variant: Kernel(variant, torch.device("cpu"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_is_the_formula(case):
    data = case.inputs()
    clean = Inputs(*(t.nan_to_num(0.0) for t in (data.q, data.k, data.v, data.dout)),
                   data.dlse, data.arguments)  # fmt: skip
    problem = reference.Problem.of(
        case.variant, clean.q, clean.k, clean.v, clean.arguments, softmax_scale=scale_of(case)
    )
    found = reference.evaluate(problem, clean.dout, clean.dlse, dtype=torch.float64)
    for name, expected in by_formula(case, clean).items():
        scale = expected[expected.isfinite()].abs().max() if expected.isfinite().any() else 1.0
        torch.testing.assert_close(
            found.named(name), expected, rtol=0, atol=1e-10 * max(1.0, float(scale)),
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_obey_the_error_rule(load, case):
    data = case.inputs()
    found = by_kernel(case, load(case.variant), data)
    assert not any(tensor.isnan().any() for tensor in found.values())
    clean = Inputs(*(t.nan_to_num(0.0) for t in (data.q, data.k, data.v, data.dout)),
                   data.dlse, data.arguments)  # fmt: skip
    results = compare_results(case.variant, clean, found, softmax_scale=scale_of(case))
    for name, result in results.items():
        assert result.ok, f"{name}: {result}"


def found_of(load, name):
    case = next(case for case in CASES if case.name == name)
    data = case.inputs()
    return by_kernel(case, load(case.variant), data), data


def test_r02_rows_without_keys_are_zero(load):
    found, _ = found_of(load, "r02")
    for rows in (slice(0, 75), slice(76, 109), slice(110, 255)):
        assert not found["out"][rows].any() and not found["dq"][rows].any()
        assert (found["lse"][:, rows] == -math.inf).all()


def test_r08_the_scores_are_as_low_as_reported(load):
    found, _ = found_of(load, "r08")
    assert (found["lse"] < -88.7).all() and found["dq"].any()


def test_r13_a_score_that_is_ignored_has_no_derivative(load):
    found, _ = found_of(load, "r13")
    assert not found["dq"].any() and not found["dk"].any()
    assert found["dbias"].any() and found["dv"].any()


def test_r17_the_tail_is_zero(load):
    found, _ = found_of(load, "r17")
    for name in ("out", "dq", "dk", "dv"):
        assert not found[name][944:].any() and found[name][:944].any(), name
    assert (found["lse"][:, 944:] == -math.inf).all()


def test_r18_a_sink_of_one_query_and_key(load):
    case = next(case for case in CASES if case.name == "r18")
    data = case.inputs()
    data.dlse.zero_()
    found = by_kernel(case, load(case.variant), data)
    for name in ("dq", "dk"):
        assert found[name][0, 0, 0, 0].item() == pytest.approx(0.39322387, rel=1e-3)
        assert not found[name][..., 1:].any()
    assert found["dsink"].item() == pytest.approx(-0.39322387, rel=1e-3)


def test_r15_a_view_of_the_keys_after_a_call_on_all(load):
    kernel = load(variant_of(R15))
    generator = torch.Generator().manual_seed(0)
    q, keys, values, dout = (
        torch.randn(1, 4, 640, 64, generator=generator).half().transpose(1, 2) for _ in range(4)
    )
    kernel.forward(q, keys, values)
    k, v = keys[:, :-128], values[:, :-128]
    out, lse, _ = kernel.forward(q, k, v)
    grads = kernel.backward(dout, q, k, v, out, lse)
    data = Inputs(q, k, v, dout, torch.zeros_like(lse))
    found = {"out": out, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    for name, result in compare_results(kernel.variant, data, found).items():
        assert result.ok, f"{name}: {result}"


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_r25_what_is_masked_never_leaks(load, poison):
    kernel = load(variant_of(R25))
    generator = torch.Generator().manual_seed(0)

    def run(q, k, v, dout, bias):
        out, lse, _ = kernel.forward(q, k, v, bias=bias)
        grads = kernel.backward(dout, q, k, v, out, lse, bias=bias)
        return out, lse, grads.dq, grads.dk, grads.dv, grads.captures["bias"]

    q, k, v, dout = (torch.randn(2, n, 2, 64, generator=generator) for n in (150, 290, 290, 150))
    bias = torch.randn(290, generator=generator)
    expected = run(q, k, v, dout, bias)
    # 64 keys by the mask; the first query stands at 140, the window starts at 40
    for hidden in (slice(0, 64), slice(0, 40)):
        dirty = [t.clone() for t in (k, v)]
        for tensor in dirty:
            tensor[:, hidden] = poison
        for ours, theirs in zip(run(q, *dirty, dout, bias), expected, strict=True):
            assert torch.equal(ours, theirs)
    wild = bias.clone()
    wild[:64] = poison
    for ours, theirs in zip(run(q, k, v, dout, wild), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert not expected[-1][:64].any() and expected[-1][64:].any()
