"""Loading by name and calling: the Kernel's contract, on real cpu kernels."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import threading

import pytest
import torch

import flashgen
from flashgen.generator.errors import ArgumentError, PlanError, SpecError, TargetError
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime import (
    operators,  # noqa: F401  (registers them)
    ops,
)
from flashgen.runtime import passes as passes_module
from flashgen.runtime.verify import Shape, compare_call

KEY = "d16-fp32-causal-dropout"


@pytest.fixture(scope="module", autouse=True)
def module_cache(tmp_path_factory):
    """Built kernels stay for this file's tests, and leave the user's cache alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.delenv("FLASHGEN_SPECS", raising=False)
        yield


@pytest.fixture(scope="module")
def kernel(module_cache):
    return flashgen.load(KEY, "cpu")


def inputs(batch=2, seqlen_q=9, seqlen_k=13, heads=4, heads_kv=2, d=16, dtype=torch.float32):
    gen = torch.Generator().manual_seed(0)
    shapes = [(batch, seqlen_q, heads, d)] + [(batch, seqlen_k, heads_kv, d)] * 2
    shapes.append((batch, seqlen_q, heads, d))
    return [torch.randn(s, generator=gen, dtype=torch.float64).to(dtype) for s in shapes]


def test_a_kernel_says_what_it_is(kernel):
    assert kernel.key == KEY and kernel.variant == parse_key(KEY)
    assert kernel.target.name == "cpu"
    assert repr(kernel) == f"Kernel('{KEY}', target='cpu')"


def test_forward_gives_out_lse_and_state(kernel):
    q, k, v, _ = inputs()
    out, lse, rng_state = kernel.forward(q, k, v, dropout_p=0.25, seed=7)
    assert out.shape == (2, 9, 4, 16) and out.is_contiguous() and out.dtype == q.dtype
    assert lse.shape == (2, 4, 9) and lse.dtype == torch.float32
    assert rng_state.tolist() == [7, 0] and rng_state.dtype == torch.int64
    assert kernel.forward(q, k, v).rng_state is None
    assert not kernel.forward(q.requires_grad_(), k, v).out.requires_grad


def test_call_is_forward_and_differentiable(kernel):
    q, k, v, dout = inputs()
    expected = kernel.forward(q, k, v, dropout_p=0.25, seed=7)
    assert torch.equal(kernel(q, k, v, dropout_p=0.25, seed=7), expected.out)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    out, lse = kernel(*leaves, dropout_p=0.25, seed=7, return_lse=True)
    dlse = torch.linspace(-1, 1, lse.numel()).view(lse.shape)
    torch.autograd.backward([out, lse], [dout, dlse])
    grads = kernel.backward(
        dout, q, k, v, expected.out, expected.lse,
        dlse=dlse, dropout_p=0.25, rng_state=expected.rng_state,
    )  # fmt: skip
    assert grads.captures == {}
    for leaf, grad in zip(leaves, (grads.dq, grads.dk, grads.dv), strict=True):
        assert torch.equal(leaf.grad, grad)


def test_gradients_that_arrive_expanded(kernel):
    q, k, v, _ = inputs()
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    kernel(*leaves).sum().backward()  # a gradient with strides of 0
    out, lse, _ = kernel.forward(q, k, v)
    grads = kernel.backward(torch.ones_like(out), q, k, v, out, lse)
    for leaf, grad in zip(leaves, (grads.dq, grads.dk, grads.dv), strict=True):
        assert torch.equal(leaf.grad, grad)


def test_r16_a_last_dimension_that_is_not_contiguous(kernel):
    *tensors, dout = inputs()
    odd = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in (*tensors, dout)]
    assert all(t.stride(3) != 1 for t in odd)
    expected, found = kernel.forward(*tensors), kernel.forward(*odd[:3])
    assert torch.equal(found.out, expected.out)
    grads = kernel.backward(odd[3], *odd[:3], found.out, found.lse)
    same = kernel.backward(dout, *tensors, expected.out, expected.lse)
    assert all(torch.equal(a, b) for a, b in zip(grads[:3], same[:3], strict=True))


def test_seeds(kernel):
    q, k, v, _ = inputs()

    def out(**options):
        return kernel.forward(q, k, v, dropout_p=0.5, **options).out

    assert torch.equal(out(seed=2**64 - 1), out(seed=-1))
    assert torch.equal(out(seed=3, offset=8), out(seed=torch.tensor(3), offset=torch.tensor(8)))
    assert torch.equal(out(seed=3), out(seed=3, offset=0))
    assert not torch.equal(out(seed=3), out(seed=4))
    assert not torch.equal(out(seed=3), out(seed=3, offset=4))


def test_torch_seeds_the_calls(kernel):
    q, k, v, _ = inputs()
    torch.manual_seed(5)
    first, second = (kernel(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(5)
    again = kernel(q, k, v, dropout_p=0.5)
    assert torch.equal(first, again) and not torch.equal(first, second)
    states = [kernel.forward(q, k, v, dropout_p=0.5, offset=4).rng_state for _ in range(2)]
    assert states[0][0] != states[1][0] and states[0][1] == states[1][1] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, "q: expected a torch.Tensor, got NoneType"),
        ({"q": torch.zeros(2, 9, 16)}, r"q: expected 4 dimensions .* got shape \(2, 9, 16\)"),
        ({"k": torch.zeros(2, 13, 2, 16).half()}, "k: expected dtype torch.float32, got torch.fl"),
        ({"v": torch.zeros(2, 13, 2, 24)}, "v: expected head_dim 16, got 24"),
        ({"q": torch.zeros(2, 9, 4, 15)}, "flashgen.attention, which pads"),
        ({"k": torch.zeros(1, 13, 2, 16)}, "k: expected batch 2 as q, got 1"),
        ({"v": torch.zeros(2, 12, 2, 16)}, "v: expected seqlen_k 13 as k, got 12"),
        ({"v": torch.zeros(2, 13, 4, 16)}, "v: expected num_heads_kv 2 as k, got 4"),
        ({"q": torch.zeros(2, 9, 5, 16)}, "multiple of num_heads_kv 2, got 5"),
        ({"k": torch.zeros(2, 13, 2, 16, device="meta")}, "k: expected device cpu as q, got meta"),
        ({"dropout_p": -0.1}, r"dropout_p: expected a probability in \[0, 1\], got -0.1"),
        ({"dropout_p": math.nan}, r"dropout_p: expected a probability in \[0, 1\], got nan"),
        ({"dropout_p": "0.1"}, "dropout_p: expected a float, got str"),
        ({"dropout_p": 0.001}, "rounds to 0 at 8 bits.*dropout16"),
        ({"dropout_p": 0.999}, "rounds to 1 at 8 bits"),
        ({"softmax_scale": math.inf}, "softmax_scale: expected a finite number .*, got inf"),
        ({"softmax_scale": math.nan}, "softmax_scale: expected a finite number .*, got nan"),
        ({"softmax_scale": torch.tensor(1.0)}, "softmax_scale: expected a float or None"),
        ({"dropout_p": 0.5, "seed": 1.5}, "seed: expected an int or a 0-dim torch.int64 tensor"),
        ({"dropout_p": 0.5, "seed": 2**64}, r"seed: expected an int in \[-2\*\*63, 2\*\*64\)"),
        ({"dropout_p": 0.5, "seed": torch.zeros(2)}, "seed: expected a 0-dim torch.int64 tensor"),
        ({"dropout_p": 0.5, "offset": True}, "offset: expected an int"),
        ({"slope": torch.zeros(4)}, "expected no captures.*got slope"),
    ],
)
def test_wrong_arguments(kernel, change, message):
    q, k, v, _ = inputs()
    arguments = {"q": q, "k": k, "v": v} | change
    for call in (kernel, kernel.forward):
        with pytest.raises(ArgumentError, match=message):
            call(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dout": torch.zeros(2, 9, 4, 8)}, r"dout: expected shape \(2, 9, 4, 16\)"),
        ({"dout": torch.zeros(2, 9, 4, 16).half()}, "dout: expected torch.float32 on cpu, got"),
        ({"out": None}, "out: expected a torch.Tensor, got NoneType"),
        ({"lse": torch.zeros(2, 9, 4)}, r"lse: expected shape \(2, 4, 9\)"),
        ({"lse": torch.zeros(2, 4, 9).double()}, "lse: expected torch.float32"),
        ({"dlse": torch.zeros(2, 4)}, r"dlse: expected shape \(2, 4, 9\)"),
        ({"rng_state": None}, "rng_state: expected the tensor that forward gave, got NoneType"),
        ({"rng_state": torch.zeros(3)}, r"rng_state: expected torch.int64 of shape \(2,\)"),
    ],
)
def test_wrong_arguments_of_backward(kernel, change, message):
    q, k, v, dout = inputs()
    out, lse, rng_state = kernel.forward(q, k, v, dropout_p=0.5, seed=1)
    arguments = {"dout": dout, "out": out, "lse": lse, "rng_state": rng_state} | change
    with pytest.raises(ArgumentError, match=message):
        kernel.backward(q=q, k=k, v=v, dropout_p=0.5, **arguments)


def test_dropout_needs_a_variant_with_it(module_cache):
    plain = flashgen.load("d16-fp32-causal", "cpu")
    q, k, v, _ = inputs()
    with pytest.raises(ArgumentError, match="this variant has no dropout, got 0.1"):
        plain(q, k, v, dropout_p=0.1)
    with pytest.raises(ArgumentError, match="probability"):
        plain(q, k, v, dropout_p=-1)


@pytest.mark.parametrize(
    ("batch", "seqlen_q", "seqlen_k", "heads", "heads_kv"),
    [(0, 9, 13, 4, 2), (2, 0, 13, 4, 2), (2, 9, 0, 4, 2), (2, 9, 13, 0, 0), (2, 9, 13, 0, 2)],
)
def test_empty_sizes(kernel, batch, seqlen_q, seqlen_k, heads, heads_kv):
    q, k, v, dout = inputs(batch, seqlen_q, seqlen_k, heads, heads_kv)
    out, lse, _ = kernel.forward(q, k, v)
    assert not out.any() and (lse == -math.inf).all()
    grads = kernel.backward(dout, q, k, v, out, lse)
    assert [g.shape for g in grads[:3]] == [q.shape, k.shape, v.shape]
    assert not any(g.any() for g in grads[:3])


def test_r23_500_shapes_build_nothing(kernel, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("a call loaded or built something")

    monkeypatch.setattr(passes_module, "load_passes", refuse)
    draw = random.Random(0)
    q, k, v, dout = inputs(batch=3, seqlen_q=90, seqlen_k=90, heads=4, heads_kv=4)
    for _ in range(500):
        batch, seqlen_q, seqlen_k = draw.randint(1, 3), draw.randint(1, 90), draw.randint(1, 90)
        heads_kv = draw.choice((1, 2, 4))
        part = [q[:batch, :seqlen_q]]
        part += [t[:batch, :seqlen_k, :heads_kv] for t in (k, v)]
        out, lse, _ = kernel.forward(*part)
        grads = kernel.backward(dout[:batch, :seqlen_q], *part, out, lse)
        assert all(t.isfinite().all() for t in (out, *grads[:3]))


def test_names(tmp_path, module_cache):
    two = tmp_path / "two.yaml"
    two.write_text("name: pair\nhead_dim: 16\ndtype: fp32\ncausal: [false, true]\n")
    with pytest.raises(SpecError, match="d16-fp32, d16-fp32-causal"):
        flashgen.load(str(two), "cpu")
    with pytest.raises(SpecError, match="d16-fp32, d16-fp32-causal"):
        flashgen.load("pair", "cpu", specs=[tmp_path])
    assert flashgen.load(f"{two}:d16-fp32-causal", "cpu").key == "d16-fp32-causal"
    one = tmp_path / "one.yaml"
    one.write_text("name: mine\nhead_dim: 16\ndtype: fp32\n")
    assert flashgen.load(str(one), "cpu").key == "d16-fp32"
    assert flashgen.load("mine", "cpu", specs=[str(one)]).key == "d16-fp32"
    with pytest.raises(SpecError, match="Did you mean mine"):
        flashgen.load("mone", "cpu", specs=[str(one)])


def test_tuning_of_the_spec_is_used(tmp_path, module_cache):
    spec = tmp_path / "pinned.yaml"
    spec.write_text(
        "name: pinned\nhead_dim: 16\ndtype: fp32\ntuning: {cpu: {forward: {tile_n: 32}}}\n"
    )
    kernel = flashgen.load("pinned", "cpu", specs=[spec])
    plan = kernel._compiled(torch.device("cpu"), "forward").artifact.manifest.plan
    assert plan["tile_n"] == 32
    found = compare_call(kernel, Shape(1, 2, 1, 50, 70), "cpu")
    assert all(one.ok for one in found.values())


def test_backward_of_a_forward_only_spec_is_built_when_asked_for(tmp_path, module_cache):
    spec = tmp_path / "inference.yaml"
    spec.write_text("name: inference\nhead_dim: 24\ndtype: fp32\npasses: forward\n")
    kernel = flashgen.load("inference", "cpu", specs=[spec])
    assert {name for _, name in kernel._passes} == {"forward"}
    q, k, v, dout = inputs(d=24)
    out, lse, _ = kernel.forward(q, k, v)
    kernel.backward(dout, q, k, v, out, lse)
    assert {name for _, name in kernel._passes} == set(PASSES)


def test_what_a_device_cannot_run(module_cache):
    with pytest.raises(TargetError, match="sm80 code can't run on target cpu"):
        flashgen.load("d16-fp16", "cpu", family="sm80")
    if not torch.cuda.is_available():
        with pytest.raises(Exception, match="expected a CUDA device for cuda, found none"):
            flashgen.load("d16-fp16", "cuda")
    with pytest.raises((PlanError, SpecError), match="multiple of 8"):
        flashgen.load("d31-fp32", "cpu")


def test_threads_may_share_a_kernel(kernel):
    q, k, v, dout = inputs(seqlen_q=60, seqlen_k=60)
    expected = kernel.forward(q, k, v)
    wrong = []

    def work():
        for _ in range(50):
            out, lse, _ = kernel.forward(q, k, v)
            kernel.backward(dout, q, k, v, out, lse)
            if not torch.equal(out, expected.out):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_graph_of_another_process_finds_its_kernel(kernel):
    q, k, v, _ = inputs()
    expected = torch.ops.flashgen.forward(q, k, v, None, KEY, 0.25, 0, [], [], [])[0]
    runner = ops._runners.pop(KEY)  # as where nothing has been loaded yet
    try:
        assert torch.equal(
            torch.ops.flashgen.forward(q, k, v, None, KEY, 0.25, 0, [], [], [])[0], expected
        )
    finally:
        ops._runners[KEY] = runner


def test_operators_are_sound_on_a_real_kernel(kernel):
    q, k, v, dout = inputs()
    state = torch.tensor([3, 4])
    torch.library.opcheck(
        torch.ops.flashgen.forward.default,
        (*(t.clone().requires_grad_() for t in (q, k, v)), state, KEY, 0.25, 64, [], [], []),
    )
    out, lse = torch.ops.flashgen.forward(q, k, v, state, KEY, 0.25, 64, [], [], [])
    torch.library.opcheck(
        torch.ops.flashgen.backward.default,
        (dout, q, k, v, out, lse, None, state, KEY, 0.25, 64, [], [], []),
    )


LAZY = "import sys, flashgen; assert 'torch' not in sys.modules; flashgen.load; import torch"


LOAD = """
import sys, torch, flashgen
kernel = flashgen.load("{key}", "cpu")
q, k, v = (torch.zeros(1, 3, 1, 16, requires_grad=True) for _ in range(3))
kernel(q, k, v).sum().backward()
sys.exit(any(name in sys.modules for name in ("torch._dynamo", "sympy")))
"""


def test_loading_and_calling_do_not_import_the_compiler_of_torch(kernel):
    subprocess.run([sys.executable, "-c", LOAD.format(key=KEY)], check=True, timeout=60)


def test_importing_flashgen_does_not_import_torch():
    subprocess.run([sys.executable, "-c", LAZY], check=True, timeout=60)
    assert {"load", "attention", "Kernel"} <= set(dir(flashgen))
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        flashgen.lod  # noqa: B018
