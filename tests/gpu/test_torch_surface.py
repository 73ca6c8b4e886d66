"""flash_attn's functions, scaled_dot_product_attention and PyTorch's flash backend on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as reference

import flashgen
from flashgen.flash_attn import flash_attn_func, flash_attn_varlen_func
from flashgen.flash_attn.torch_backend import register_flash_backend

pytestmark = pytest.mark.gpu


def draw(*shapes, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    tensors = [torch.randn(s, generator=generator, device="cuda").to(dtype) for s in shapes]
    return [tensor.requires_grad_() for tensor in tensors]


def results(function, leaves):
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


def close(ours, wanted):
    for one, other in zip(ours, wanted, strict=True):
        scale = other.float().abs().max().clamp(min=1.0)
        assert (one.float() - other.float()).abs().max() <= 0.03 * scale


def in_fp32(mask=None, **options):
    def function(q, k, v, *bias):
        chosen = bias[0] if bias else mask
        with sdpa_kernel(SDPBackend.MATH):
            return reference(q.float(), k.float(), v.float(), chosen, **options)

    return function


@pytest.mark.parametrize("kind", ["causal", "padding", "bool", "float"])
def test_sdpa(kind):
    leaves = draw((2, 8, 300, 64), *[(2, 2, 300, 64)] * 2)
    options = {"enable_gqa": True, "is_causal": kind == "causal"}
    mask = {
        "padding": torch.arange(300, device="cuda") >= torch.tensor([[40], [170]], device="cuda"),
        "bool": torch.ones(300, 300, device="cuda").tril(3).bool(),
    }.get(kind)
    mask = mask[:, None, None] if kind == "padding" else mask
    leaves += draw((8, 300, 300), dtype=torch.float32, seed=1) if kind == "float" else []

    def ours(q, k, v, *bias):
        chosen = bias[0] if bias else mask
        return flashgen.scaled_dot_product_attention(q, k, v, chosen, **options)

    close(results(ours, leaves), results(in_fp32(mask, **options), leaves))


@pytest.mark.parametrize("axes", ["qk", "k"])
def test_least_numbers_hide_keys(axes):
    """As models mask: the first tiles hidden throughout, and some rows altogether."""
    leaves = draw(*[(2, 4, 300, 64)] * 3)
    mask = torch.zeros(2, 1, 300 if axes == "qk" else 1, 300, device="cuda")
    mask[0, ..., :150] = torch.finfo(torch.float32).min
    if axes == "qk":
        mask += torch.full((300, 300), torch.finfo(torch.float32).min / 2, device="cuda").triu(1)
    seen = mask > -1e38

    def ours(q, k, v):
        return flashgen.scaled_dot_product_attention(q, k, v, mask)

    def wanted(q, k, v):  # a row that sees nothing is 0
        return torch.where(seen.any(-1, keepdim=True), in_fp32(seen)(q, k, v), 0.0)

    close(results(ours, leaves), [t.nan_to_num() for t in results(wanted, leaves)])


def test_masks_never_wait_for_the_gpu():
    q, k, v = draw(*[(2, 4, 128, 64)] * 3)
    mask = torch.ones(2, 1, 1, 128, dtype=torch.bool, device="cuda")
    flashgen.scaled_dot_product_attention(q, k, v, mask)  # builds
    torch.cuda.set_sync_debug_mode("error")
    try:
        flashgen.scaled_dot_product_attention(q, k, v, mask).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_flash_attn_dense_and_packed():
    leaves = draw(*[(3, 130, 4, 64)] * 3)
    offsets = torch.arange(4, dtype=torch.int32, device="cuda") * 130

    def packed(q, k, v):
        flat = [t.flatten(0, 1) for t in (q, k, v)]
        return flash_attn_varlen_func(*flat, offsets, offsets, 130, 130, causal=True).view(q.shape)

    def dense(q, k, v):
        return flash_attn_func(q, k, v, causal=True)

    def wanted(q, k, v):
        tensors = (t.transpose(1, 2) for t in (q, k, v))
        return in_fp32(is_causal=True)(*tensors).transpose(1, 2)

    expected = results(wanted, leaves)
    close(results(dense, leaves), expected)
    close(results(packed, leaves), expected)


def test_dropout_repeats_with_the_seed():
    q, k, v = draw(*[(2, 130, 4, 64)] * 3)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        out = flash_attn_func(q, k, v, dropout_p=0.1, deterministic=True)
        runs.append([out, *torch.autograd.grad(out.float().sum(), (q, k, v))])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.skipif(
    not hasattr(torch.nn.attention, "register_flash_attention_impl"),
    reason="needs a torch with register_flash_attention_impl",
)
@pytest.mark.parametrize("compiled", [False, True])
def test_torchs_flash_backend(compiled):
    leaves = draw((2, 4, 300, 64), *[(2, 4, 300, 64)] * 2)
    expected = results(in_fp32(is_causal=True), leaves)
    register_flash_backend()
    torch.nn.attention.activate_flash_attention_impl("flashgen")
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):

            def unmodified(q, k, v):
                return reference(q, k, v, is_causal=True)

            function = torch.compile(unmodified) if compiled else unmodified
            close(results(function, leaves), expected)
            assert torch.nn.attention.current_flash_attention_impl() == "flashgen"
    finally:
        torch.nn.attention.restore_flash_attention_impl()


def test_a_captured_graph_draws_anew_at_each_replay():
    q, k, v = (t.detach() for t in draw(*[(2, 130, 4, 64)] * 3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        flash_attn_func(q, k, v, dropout_p=0.5)  # builds and loads
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = flash_attn_func(q, k, v, dropout_p=0.5)
    found = []
    for _ in range(2):
        graph.replay()
        found.append(out.clone())
    assert not torch.equal(*found) and all(one.isfinite().all() for one in found)


def test_streams_of_ones_own():
    leaves = draw(*[(2, 130, 4, 64)] * 3)
    expected = results(lambda *t: flash_attn_func(*t, causal=True, deterministic=True), leaves)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = results(lambda *t: flash_attn_func(*t, causal=True, deterministic=True), leaves)
    stream.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_autocast_and_scaled_gradients():
    leaves = draw(*[(2, 130, 4, 64)] * 3, dtype=torch.float32)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    with torch.autocast("cuda", torch.float16):
        out = flash_attn_func(*leaves, causal=True)
    assert out.dtype is torch.float16
    grads = torch.autograd.grad(scaler.scale(out.float().square().sum()), leaves)
    found = [out, *(grad / scaler.get_scale() for grad in grads)]
    wanted = results(lambda *t: flash_attn_func(*(x.half() for x in t), causal=True), leaves)
    close(found, wanted)
    huge = torch.autograd.grad(flash_attn_func(*(t.half() for t in leaves)), leaves,
                               torch.full_like(out, 6e4))  # fmt: skip
    assert not all(grad.isfinite().all() for grad in huge)  # a GradScaler leaves such a step out


def test_an_exported_program():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return flash_attn_func(q, k, v, causal=True)

    inputs = tuple(t.detach() for t in draw(*[(2, 130, 4, 64)] * 3))
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {name: {1: length} for name in "qkv"}
    program = torch.export.export(Module(), inputs, dynamic_shapes=shapes)
    shorter = [t[:, :77] for t in inputs]
    assert torch.equal(program.module()(*shorter), flash_attn_func(*shorter, causal=True))


def packed_reference(q, k, v, ends_q, ends_k, **options):
    parts = []
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        one = (t[None].transpose(1, 2) for t in (q[a:b], k[c:d], v[c:d]))
        parts.append(in_fp32(enable_gqa=True, **options)(*one)[0].transpose(0, 1))
    return torch.cat(parts)


def test_r22_through_flash_attn():
    ends_q, ends_k = (0, 0, 1208, 2048, 2048), (0, 2538, 4280, 5120, 8192)
    leaves = draw((2048, 4, 256), *[(8192, 1, 256)] * 2)
    offsets = [torch.tensor(e, dtype=torch.int32, device="cuda") for e in (ends_q, ends_k)]
    found = results(lambda *t: flash_attn_varlen_func(*t, *offsets, 1208, 3072), leaves)
    close(found, results(lambda *t: packed_reference(*t, ends_q, ends_k), leaves))


@pytest.mark.parametrize("shape", [(65_537, 2, 1, 64), (1, 2, 65_537, 64)])
def test_r24_through_flash_attn(shape):
    leaves = draw(*[shape] * 3)
    heads = [t.detach().transpose(1, 2).requires_grad_() for t in leaves]
    found = results(lambda *t: flash_attn_func(*t, causal=True), leaves)
    expected = results(in_fp32(is_causal=True), heads)
    close(found, [t.transpose(1, 2) for t in expected])


def test_torchs_packed_attention_on_the_backend():
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    ends = (0, 130, 130, 400)
    leaves = draw(*[(400, 4, 64)] * 3)
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    register_flash_backend()
    torch.nn.attention.activate_flash_attention_impl("flashgen")
    try:
        found = results(lambda *t: varlen.varlen_attn(*t, offsets, offsets, 270, 270), leaves)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    close(found, results(lambda *t: packed_reference(*t, ends, ends), leaves))
