"""The cpu family's compiled kernels: both passes against the fp64 reference, and the hard inputs.

Every kernel of this file is built once, before the first test, into a cache of its own.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_unit import poisoned

import flashgen
from flashgen.generator.arch import parse_target
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime import passes as passes_module
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.cache import Cache
from flashgen.runtime.philox import keep_mask
from flashgen.runtime.verify import Inputs, Shape, compare_call, compare_results

KEYS = (
    "d8-fp64-causal-dropout",
    "d8v256-fp32-dropout16",
    "d16-fp16",
    "d40-fp32-causal-dropout16",
    "d64-bf16-causal",
    "d64-fp32-causal",
    "d72-fp16",
    "d96-bf16-causal-dropout",
    "d128-fp16-causal",
    "d192v128-bf16-causal",
    "d256-fp32-dropout",
)
LENGTHS = ((1, 1), (1, 300), (17, 65), (64, 64), (65, 17), (127, 300), (300, 127), (257, 257))
GROUPS = (1, 4, 8)


@pytest.fixture(scope="module", autouse=True)
def cpu_cache(tmp_path_factory):
    """A cache that holds every kernel of this file; results and workspaces start as NaN."""
    root = tmp_path_factory.mktemp("cpu-kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(root))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.setattr(passes_module, "_like", poisoned)
        target = parse_target("cpu")
        build(
            [BuildRequest(parse_key(key), name, target) for key in KEYS for name in PASSES],
            cache=Cache(root),
        )
        yield root


def load(key):
    return flashgen.load(key, device="cpu")


def inputs(key, batch, seqlen_q, seqlen_k, heads=2, heads_kv=2, factor=1.0, seed=0):
    """(q, k, v, dout) of normal values times ``factor``."""
    variant = parse_key(key)
    generator = torch.Generator().manual_seed(seed)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(variant.dtype, torch.float32)
    if variant.dtype == "fp64":
        dtype = torch.float64

    def normal(*shape):
        return (torch.randn(shape, generator=generator) * factor).to(dtype)

    return (
        normal(batch, seqlen_q, heads, variant.head_dim),
        normal(batch, seqlen_k, heads_kv, variant.head_dim),
        normal(batch, seqlen_k, heads_kv, variant.head_dim_v),
        normal(batch, seqlen_q, heads, variant.head_dim_v),
    )


def run(key, q, k, v, dout, dlse=None, **options):
    """Every result of both passes, by name."""
    kernel = load(key)
    out, lse, rng_state = kernel.forward(q, k, v, **options)
    if rng_state is not None:
        options = {n: o for n, o in options.items() if n not in ("seed", "offset")}
        options["rng_state"] = rng_state
    grads = kernel.backward(dout, q, k, v, out, lse, dlse=dlse, **options)
    return {"out": out, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}


def assert_equal(ours, theirs):
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def assert_close(key, shape, **options):
    for name, found in compare_call(load(key), shape, "cpu", **options).items():
        assert found.ok, f"{key} {shape} {options} {name}: {found}"


def cases():
    """Every key with every length, walking through the groups."""
    for i, key in enumerate(KEYS):
        for j, (seqlen_q, seqlen_k) in enumerate(LENGTHS):
            yield key, Shape(1, 8, 8 // GROUPS[(i + j) % len(GROUPS)], seqlen_q, seqlen_k)


@pytest.mark.parametrize(("key", "shape"), list(cases()), ids=str)
def test_both_passes_obey_the_error_rule(key, shape):
    assert_close(key, shape, dropout_p=0.3, seed=shape.seqlen_q)


@pytest.mark.parametrize("key", ["d64-fp32-causal", "d64-bf16-causal", "d8-fp64-causal-dropout"])
@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0, 1e-39, 1e-45, -1e-60, 1e-310])
def test_softmax_scale(key, scale):
    assert_close(key, Shape(1, 2, 1, 70, 90), softmax_scale=scale)


def test_gradcheck_with_the_gradient_of_lse():
    kernel = load("d8-fp64-causal-dropout")
    q, k, v, _ = (t.requires_grad_() for t in inputs(kernel.key, 1, 3, 5, heads=2, heads_kv=1))

    def function(q, k, v):
        return kernel(q, k, v, dropout_p=0.25, seed=3, return_lse=True)

    assert torch.autograd.gradcheck(function, (q, k, v))


@pytest.mark.parametrize(
    ("key", "bits", "p"),
    [("d256-fp32-dropout", 8, 0.4), ("d8v256-fp32-dropout16", 16, 0.001)],
)
def test_both_passes_drop_the_elements_of_the_definition(key, bits, p):
    q, k, _, _ = inputs(key, 2, 150, 200, heads=3, heads_kv=3)
    identity = torch.eye(200, 256).reshape(1, 200, 1, 256).expand(2, 200, 3, 256).contiguous()
    dout = torch.eye(150, 256).reshape(1, 150, 1, 256).expand(2, 150, 3, 256).contiguous()
    found = run(key, q * 0, k, identity, dout, dropout_p=p, seed=-(2**62) + 5, offset=2**40 + 8)
    threshold = round(2**bits * p)
    keep = keep_mask(
        torch.tensor(-(2**62) + 5), torch.tensor(2**40 + 8), 2, 3, 150, 200,
        threshold, bits, torch.device("cpu"),
    )  # fmt: skip
    kept = keep.permute(0, 2, 1, 3)
    assert torch.equal(found["out"][..., :200] != 0, kept)
    assert torch.equal(found["dv"][..., :150] != 0, keep.permute(0, 3, 1, 2))
    value = found["out"][..., :200][kept]
    expected = torch.full_like(value, 1 / 200 / (1 - threshold / 2**bits))
    torch.testing.assert_close(value, expected)


def test_dropping_everything_and_nothing():
    key = "d256-fp32-dropout"
    q, k, v, dout = inputs(key, 1, 40, 50)
    nothing = run(key, q, k, v, dout, dropout_p=0.0)
    everything = run(key, q, k, v, dout, dropout_p=1.0, seed=1)
    assert torch.equal(everything["lse"], nothing["lse"])
    for name in ("out", "dq", "dk", "dv"):
        assert not everything[name].any(), name
        assert nothing[name].any(), name


def test_r01_one_query_one_key():
    found = run("d16-fp16", *inputs("d16-fp16", 1, 1, 1, 1, 1, factor=3))
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert_close("d16-fp16", Shape(1, 1, 1, 1, 1), factor=3)


@pytest.mark.parametrize(
    ("key", "batch", "seqlen", "heads"),
    [("d128-fp16-causal", 8300, 1, 2), ("d72-fp16", 1000, 15, 2)],
)
def test_r04_many_short_sequences(key, batch, seqlen, heads):
    assert_close(key, Shape(batch, heads, heads, seqlen, seqlen))


def test_r07_queries_before_every_key():
    key = "d64-fp32-causal"
    found = run(key, *inputs(key, 1, 2048, 1024, 1, 1))
    assert not found["out"][:, :1024].any() and not found["dq"][:, :1024].any()
    assert (found["lse"][:, :, :1024] == -math.inf).all()
    assert found["lse"][:, :, 1024:].isfinite().all()
    assert_close(key, Shape(1, 1, 1, 2048, 1024))


@pytest.mark.parametrize("seqlen", [64, 192, 704])
@pytest.mark.parametrize("key", ["d64-bf16-causal", "d64-fp32-causal"])
def test_r08_lse_below_the_smallest_exponent(key, seqlen):
    q, k, v, dout = inputs(key, 1, seqlen, seqlen, 1, 1)
    q, k = q * 0.1, k * 0.1
    q[..., 0], k[..., 0] = 1, -120 * 8
    judge_far_below_zero(key, q, k, v, dout)


def test_r09_scores_far_below_zero():
    q, k, v, dout = inputs("d64-fp32-causal", 1, 1, 128, 1, 1)
    q[..., -1], k[..., -1] = 8, -128  # last, so that only one addition is rounded at 1024's ulp
    judge_far_below_zero("d64-fp32-causal", q, k, v, dout)


def judge_far_below_zero(key, q, k, v, dout):
    found = run(key, q, k, v, dout)
    assert (found["lse"] < -104).all()  # e^lse is 0 in fp32
    assert all(tensor.isfinite().all() for tensor in found.values())
    data = Inputs(q, k, v, dout, torch.zeros_like(found["lse"]))
    for name, result in compare_results(parse_key(key), data, found).items():
        assert result.ok, f"{name}: {result}"


@pytest.mark.parametrize(("batch", "heads"), [(65_537, 1), (1, 65_537)])
def test_r24_more_sequences_or_heads_than_a_grid_holds(batch, heads):
    assert_close("d8-fp64-causal-dropout", Shape(batch, heads, heads, 2, 2))


@pytest.mark.parametrize("key", ["d64-fp32-causal", "d256-fp32-dropout", "d72-fp16"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_r25_what_no_query_may_see_never_leaks(key, poison):
    q, k, v, dout = inputs(key, 2, 70, 150)
    clean = run(key, q, k, v, dout)
    wide = [torch.cat([t, torch.full_like(t, poison)], 1) for t in (q, k, v, dout)]
    views = [w[:, : t.shape[1]] for w, t in zip(wide, (q, k, v, dout), strict=True)]
    assert_equal(run(key, *views), clean)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_r25_queries_without_keys_never_leak(poison):
    key = "d64-fp32-causal"
    q, k, v, dout = inputs(key, 1, 150, 70)
    clean = run(key, q, k, v, dout)
    q[:, :80], dout[:, :80] = poison, poison
    found = run(key, q, k, v, dout)
    assert_equal(found, clean)


def test_a_nan_that_a_query_sees_reaches_its_output():
    q, k, v, dout = inputs("d64-fp32-causal", 1, 200, 200, 1, 1)
    k[:, 199] = math.nan
    out = run("d64-fp32-causal", q, k, v, dout)["out"]
    assert out[:, 199].isnan().all()
    assert out[:, :192].isfinite().all()


@pytest.mark.parametrize("key", ["d64-fp32-causal", "d256-fp32-dropout", "d72-fp16"])
@pytest.mark.parametrize("row", [0, 100, 199])
def test_a_nan_query_has_nan_outputs_and_no_other_has(key, row):
    q, k, v, dout = inputs(key, 1, 200, 230)
    clean = run(key, q, k, v, dout)
    q[:, row, 0, 3] = math.nan
    out = run(key, q, k, v, dout)["out"]
    assert out[:, row, 0].isnan().all()
    clean["out"][:, row, 0] = out[:, row, 0] = 0
    assert torch.equal(out, clean["out"])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_of_the_lse_of_a_query_without_keys_is_not_read(poison):
    key = "d64-fp32-causal"
    q, k, v, dout = inputs(key, 1, 150, 70)
    dlse = torch.randn(1, 2, 150)
    clean = run(key, q, k, v, dout, dlse=dlse)
    dlse[:, :, :80] = poison
    found = run(key, q, k, v, dout, dlse=dlse)
    assert not found["dq"][:, :80].any()
    assert_equal(found, clean)


def test_r26_views_need_no_copies():
    key = "d256-fp32-dropout"
    q, k, v, dout = inputs(key, 2, 200, 200, 4, 4)
    expected = run(key, q, k, v, dout)
    packed = torch.stack([q, k, v], 2)  # (batch, seqlen, 3, heads, head_dim)
    views = packed.unbind(2)
    assert_equal(run(key, *views, dout), expected)
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v, dout)]
    assert_equal(run(key, *transposed), expected)


def test_offsets_pass_two_to_the_31():
    key = "d16-fp16"
    tensors = inputs(key, 2, 20, 20)
    step = 2**31 + 64
    pool = torch.empty(step + 2**16, dtype=torch.float16)  # only touched pages take memory
    views = []
    for i, tensor in enumerate(tensors):
        view = pool[i * 2**12 :].as_strided(tensor.shape, (step, *tensor.stride()[1:]))
        views.append(view.copy_(tensor))
    assert_equal(run(key, *views), run(key, *tensors))


def test_r27_the_same_call_250_times():
    key = "d64-fp32-causal"
    tensors = inputs(key, 1, 100, 130, 2, 1)
    expected = run(key, *tensors)
    for _ in range(250):
        assert_equal(run(key, *tensors), expected)


def test_results_do_not_depend_on_the_number_of_threads():
    key = "d40-fp32-causal-dropout16"
    tensors = inputs(key, 2, 300, 400, 4, 2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = run(key, *tensors, dropout_p=0.1, seed=1)
        torch.set_num_threads(5)
        assert_equal(run(key, *tensors, dropout_p=0.1, seed=1), expected)
    finally:
        torch.set_num_threads(before)


TUNED = """head_dim: 40
dtype: fp32
causal: true
dropout: {bits: 16}
tuning:
  cpu:
    forward: {tile_m: 48, tile_n: 128%(isa)s}
    backward: {tile_m: 48, tile_n: 32, dkv_tile_m: 32, dkv_tile_n: 192%(isa)s}
"""
WIDE = ", isa: x86-64-v4, vector_bytes: 64, block_rows: 8"


def has_avx512():
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags


@pytest.mark.parametrize(
    "isa",
    ["", pytest.param(WIDE, marks=pytest.mark.skipif(not has_avx512(), reason="needs AVX-512"))],
    ids=["x86-64-v3", "x86-64-v4"],
)
def test_other_tiles_and_vectors_drop_the_same_elements(tmp_path, isa):
    spec = tmp_path / "tuned.yaml"
    spec.write_text(TUNED % {"isa": isa})
    tuned = flashgen.load(str(spec), device="cpu")
    assert tuned.key == "d40-fp32-causal-dropout16"
    for name, found in compare_call(tuned, Shape(1, 4, 2, 211, 300), "cpu").items():
        assert found.ok, f"{name}: {found}"


FORK = """
import ctypes, os, torch, flashgen
q, k, v = (torch.randn(2, 300, 4, 64) for _ in range(3))
kernel = flashgen.load("d64-fp32-causal", device="cpu")
torch.set_num_threads(4)
expected = kernel.forward(q, k, v)
kernel.backward(q, q, k, v, *expected[:2])
child = os.fork()
if child == 0:
    out, lse, _ = kernel.forward(q, k, v)
    kernel.backward(q, q, k, v, out, lse)
    # torch's own operations may wait forever here, so compare without them
    bits = [ctypes.string_at(t.data_ptr(), t.nbytes) for t in (out, expected.out)]
    os._exit(0 if bits[0] == bits[1] else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(kernel.forward(q, k, v).out, expected.out)
"""


def test_a_forked_child_computes_too():
    done = subprocess.run([sys.executable, "-c", FORK], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("batch", "seqlen_q", "seqlen_k"), [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_empty_sizes(batch, seqlen_q, seqlen_k):
    key = "d64-fp32-causal"
    found = run(key, *inputs(key, batch, seqlen_q, seqlen_k))
    assert (found.pop("lse") == -math.inf).all()
    assert not any(tensor.any() for tensor in found.values())
