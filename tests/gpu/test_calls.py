"""How kernels live with CUDA and torch: graphs, streams, memory, views, devices, compile."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import flashgen
from flashgen.generator.errors import ArgumentError
from flashgen.runtime import arguments
from flashgen.runtime import passes as passes_module
from flashgen.runtime.verify import Shape, compare_call

pytestmark = pytest.mark.gpu


def captured(function):
    """``function`` as a CUDA graph, and what it returns in each replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


def test_graph_replays_with_a_seed_that_advances(load, inputs, device):
    kernel = load("d72-fp16-causal-dropout-det")
    q, k, v, dout = inputs(kernel.key, 2, 130, 170)
    seed, offset = torch.tensor(11, device=device), torch.tensor(0, device=device)

    def step():
        out, lse, state = kernel.forward(q, k, v, dropout_p=0.3, seed=seed, offset=offset)
        grads = kernel.backward(dout, q, k, v, out, lse, dropout_p=0.3, rng_state=state)
        offset.add_(4)
        return out, grads.dq, grads.dk, grads.dv

    graph, results = captured(step)
    for turn in range(3):
        offset.fill_(100 * turn)
        for i in range(3):
            graph.replay()
            out, lse, state = kernel.forward(
                q, k, v, dropout_p=0.3, seed=11, offset=100 * turn + 4 * i
            )
            grads = kernel.backward(dout, q, k, v, out, lse, dropout_p=0.3, rng_state=state)
            for ours, expected in zip(results, (out, grads.dq, grads.dk, grads.dv), strict=True):
                assert torch.equal(ours, expected)


def test_graph_draws_anew_from_torchs_generator(load, inputs):
    kernel = load("d64-fp16-dropout")
    q, k, v, _ = inputs(kernel.key, 1, 130, 170)
    graph, out = captured(lambda: kernel(q, k, v, dropout_p=0.3))
    graph.replay()
    first = out.clone()
    graph.replay()
    assert not torch.equal(out, first)


def test_graph_reads_new_inputs(load, inputs):
    kernel = load("d128-bf16-causal")
    q, k, v, _ = inputs(kernel.key, 2, 300, 300)
    graph, out = captured(lambda: kernel(q, k, v))
    q.copy_(q.flip(1))
    graph.replay()
    assert torch.equal(out, kernel(q, k, v))


def test_calls_run_on_the_current_stream(load, inputs):
    kernel = load("d64-bf16-causal-det")
    tensors = inputs(kernel.key, 2, 500, 500)
    out, lse, _ = kernel.forward(*tensors[:3])
    expected = (out, *kernel.backward(tensors[3], *tensors[:3], out, lse)[:3])
    late = [torch.full_like(t, float("nan")) for t in tensors]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # about 50 ms in which only the stream's order helps
        for target, source in zip(late, tensors, strict=True):
            target.copy_(source)
        out, lse, _ = kernel.forward(*late[:3])
        found = (out, *kernel.backward(late[3], *late[:3], out, lse)[:3])
    side.synchronize()
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_lse_that_nobody_asks_for_reaches_nobody(load, inputs):
    kernel = load("d128-bf16-causal")
    q, k, v, _ = inputs(kernel.key, 2, 300, 300)
    out, lse, _ = kernel.forward(q, k, v)
    kept, expected = lse.clone(), kernel.forward(q, k, -v)
    found = [kernel(q * 2, k, v), kernel(q, k, -v)]  # sizes that are known by now
    streams = [torch.cuda.Stream() for _ in range(4)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found += [kernel(q, k, -v) for _ in range(5)]
    torch.cuda.synchronize()
    assert torch.equal(lse, kept) and all(torch.equal(o, expected.out) for o in found[1:])
    assert torch.equal(kernel(q, k, v, return_lse=True)[1], kept)


def test_launches_of_few_blocks_on_several_streams(load, inputs):
    """Up to 64 blocks of queries a kernel of sm90 needs no counter of its own, and above one."""
    kernel = load("d128-bf16-causal")
    whole = inputs(kernel.key, 1, 130, 130, heads=80)
    expected, _, _ = kernel.forward(*whole[:3])
    streams = [torch.cuda.Stream() for _ in range(3)]
    found = []
    for heads in (1, 31, 32, 33, 64, 65, 80):
        part = [t[:, :, :heads] for t in whole[:3]]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found += [(heads, kernel(*part)) for _ in range(20)]
    torch.cuda.synchronize()
    for heads, out in found:
        assert torch.equal(out, expected[:, :, :heads]), heads
    graph, out = captured(lambda: kernel(*(t[:, :, :5] for t in whole[:3])))
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected[:, :, :5])


def test_no_call_waits_for_the_gpu(load, inputs, device):
    kernel = load("d64-fp16-causal-dropout")
    q, k, v, dout = inputs(kernel.key, 1, 200, 200)
    leaf = q.clone().requires_grad_()
    seed = torch.tensor(3, device=device)
    kernel(leaf, k, v, dropout_p=0.1).backward(dout)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for options in ({}, {"seed": 5}, {"seed": seed}, {"seed": seed, "offset": 8}):
            kernel(leaf, k, v, dropout_p=0.1, **options).backward(dout)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Peak(NamedTuple):
    """The most memory held during a step over what was held before it, in bytes."""

    requested: int  # by tensors
    allocated: int  # in the allocator's blocks, which may be larger than their tensors

    def __str__(self):
        return f"{self.requested:,} bytes requested, {self.allocated:,} allocated"


def peak_of(step):
    step()  # leaves behind what a first call keeps
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # a block that another test left may be larger than one made anew
    before = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    kinds = ("requested_bytes.all", "allocated_bytes.all")
    return Peak(*(after[f"{kind}.peak"] - before[f"{kind}.current"] for kind in kinds))


def training_step(attention, shape):
    leaves = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
    dout = torch.randn_like(leaves[0])
    for leaf in leaves:
        leaf.requires_grad_()

    def step():
        attention(*leaves).backward(dout)
        for leaf in leaves:
            leaf.grad = None

    return step


def ours_step(load, seqlen):
    kernel = load("d64-fp16-causal-dropout")
    return training_step(lambda *qkv: kernel(*qkv, dropout_p=0.1), (4, seqlen, 16, 64))


def test_peak_memory_is_that_of_flash_attention(load):
    def sdpa(q, k, v):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)

    ours = peak_of(ours_step(load, 4096))
    theirs = peak_of(training_step(sdpa, (4, 16, 4096, 64)))
    print(f"ours: {ours}; SDPA: {theirs}")
    assert ours.requested <= theirs.requested, f"ours: {ours}; SDPA: {theirs}"
    # our workspace is one tensor, of whose block the allocator may leave 1 MiB unused
    assert ours.allocated <= theirs.allocated + 2**20, f"ours: {ours}; SDPA: {theirs}"


def test_peak_memory_is_linear_in_seqlen(load):
    half, whole = (peak_of(ours_step(load, seqlen)) for seqlen in (2048, 4096))
    assert whole.requested <= 2 * half.requested, f"{half}; {whole}"


def test_forward_saves_its_inputs_and_results_only(load, inputs):
    kernel = load("d64-fp16-causal-dropout")
    q, k, v, _ = inputs(kernel.key, 2, 1000, 1000)
    before = torch.cuda.memory_allocated()
    out = kernel(q.requires_grad_(), k, v, dropout_p=0.1)
    lse_bytes = 2 * 2 * 1000 * 4
    assert torch.cuda.memory_allocated() - before <= out.nbytes + lse_bytes + 3 * 512


def test_500_shapes_build_nothing(load, inputs, monkeypatch):  # R23
    kernel = load("d128-bf16-causal")

    def refuse(*args, **options):
        raise AssertionError("a call loaded or built something")

    monkeypatch.setattr(passes_module, "load_passes", refuse)
    draw = random.Random(0)
    q, k, v, dout = inputs(kernel.key, 2, 700, 700, heads=8)
    for _ in range(500):
        seqlen_q, seqlen_k = draw.randint(1, 700), draw.randint(1, 700)
        batch, heads_kv = draw.randint(1, 2), draw.choice((1, 2, 4, 8))
        part = [q[:batch, :seqlen_q], k[:batch, :seqlen_k, :heads_kv]]
        part.append(v[:batch, :seqlen_k, :heads_kv])
        out, lse, _ = kernel.forward(*part)
        grads = kernel.backward(dout[:batch, :seqlen_q], *part, out, lse)
        assert all(t.isfinite().all() for t in (out, *grads[:3]))


@pytest.mark.parametrize("key", ["d64-bf16-causal-det", "d128-fp16-det"])
def test_views_that_are_not_aligned_are_copied(run, inputs, key):
    tensors = inputs(key, 2, 130, 130)
    expected = run(key, *tensors)
    for pad_before, pad_after in ((1, 0), (0, 3), (8, 0), (0, 8)):
        views = []
        for tensor in tensors:
            wide = torch.nn.functional.pad(tensor, (pad_before, pad_after), value=float("nan"))
            views.append(wide[..., pad_before : pad_before + tensor.shape[3]])
        copied = any(arguments.usable(view) is not view for view in views)
        assert copied == (pad_before + pad_after != 8)
        found = run(key, *views)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_inputs_that_are_expanded(run, inputs):
    key = "d64-bf16-causal-det"
    q, k, v, dout = inputs(key, 2, 130, 130)
    for axes in ((0,), (1,), (2,), (0, 1, 2)):
        views = []
        for tensor in (q, k, v):
            small = tensor
            for axis in axes:
                small = small.narrow(axis, 0, 1)
            views.append(small.expand_as(tensor))
        found, expected = run(key, *views, dout), run(key, *(t.contiguous() for t in views), dout)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_gradients_that_arrive_expanded(run, inputs):
    key = "d64-bf16-causal-det"
    q, k, v, dout = inputs(key, 2, 130, 130)
    for small in (dout[:1, :1, :1], dout[:, :, :, :1], dout[:1, :1, :1, :1]):
        view = small.expand_as(dout)
        found, expected = run(key, q, k, v, view), run(key, q, k, v, view.contiguous())
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_kernel_of_another_device(load, inputs):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices, this machine has one")
    kernel = load("d64-bf16-causal-det")
    q, k, v, _ = inputs(kernel.key, 2, 130, 130)
    elsewhere = kernel(*(t.to("cuda:1") for t in (q, k, v)))
    assert elsewhere.device == torch.device("cuda", 1)
    assert torch.equal(elsewhere.to(q.device), kernel(q, k, v))


def test_a_gpu_kernel_called_on_the_cpu(load, inputs):
    kernel = load("d64-fp16")
    shape = Shape(1, 2, 1, 70, 90)
    for name, found in compare_call(kernel, shape, "cpu").items():
        assert found.ok, f"{name}: {found}"
    q, k, v, _ = inputs(kernel.key, 1, 20, 20)
    with pytest.raises(ArgumentError, match="expected device cuda:0 as q, got cpu"):
        kernel(q, k.cpu(), v)


def test_a_device_that_does_not_exist_is_the_calls_error(load, inputs, claim_device):
    kernel = load("d64-fp16")
    q, k, v, _ = inputs(kernel.key, 1, 70, 90)
    expected, lse, _ = kernel.forward(q, k, v)
    out = torch.full_like(expected, float("nan"))
    function = kernel._compiled(q.device, "forward").function
    workspace = torch.empty(0, dtype=torch.uint8, device=q.device)
    *elsewhere, there = [claim_device(t, 2, 99) for t in (out, lse, q, k, v, workspace)]
    with pytest.raises(RuntimeError, match="forward: device of the tensors: invalid device"):
        function(*elsewhere, None, there, 0.125, 0)
    assert out.isnan().all()
    function(out, lse, q, k, v, None, workspace, 0.125, 0)  # finds nothing of that error
    assert torch.equal(out, expected)


def test_family_sm80_serves_this_target(device, inputs):
    q, k, v, _ = inputs("d64-fp16", 1, 70, 90)
    kernel = flashgen.load("d64-fp16", device, family="sm80")
    found = compare_call(kernel, Shape(1, 2, 1, 70, 90), device)
    assert all(one.ok for one in found.values())
    assert kernel(q, k, v).isfinite().all()


def test_compiled_graph_is_one_and_equal(load, inputs):
    kernel = load("d72-fp16-causal-dropout-det")
    torch._dynamo.reset()

    def step(q, k, v, seed):
        return kernel(q * 2, k, v, dropout_p=0.2, seed=seed).sin()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    q, k, v, dout = inputs(kernel.key, 2, 130, 130)
    seed = torch.tensor(3, device=q.device)
    results = []
    for function in (step, compiled):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = function(*leaves, seed)
        out.backward(dout)
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)


def test_attention_builds_what_it_needs(load, inputs):
    load("d64-bf16-causal-det")
    q, k, v, _ = inputs("d64-bf16", 2, 130, 200, heads=4, heads_kv=2)
    out, lse = flashgen.attention(q, k, v, causal=True, deterministic=True, return_lse=True)
    assert torch.equal(out, load("d64-bf16-causal-det")(q, k, v))
    assert lse.shape == (2, 4, 130) and lse.dtype == torch.float32
    with pytest.raises(ArgumentError, match=r"float16, torch\.bfloat16 on cuda"):
        flashgen.attention(q.float(), k.float(), v.float())
