from __future__ import annotations

import math

import pytest
import torch

from flashgen import flash_attn
from flashgen.flash_attn.flash_attn_interface import _get_block_size_n


def draw(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


OPTIONS = [
    {},
    {"causal": True},
    {"window_size": (5, 2)},
    {"window_size": (-1, 3), "softmax_scale": 0.5},
    {"window_size": (4, -1), "causal": True},
    {"softcap": 2.0, "alibi_slopes": torch.tensor([0.5, 0.1, 0.3, 0.0]), "causal": True},
    {"alibi_slopes": torch.rand(2, 4, generator=torch.Generator().manual_seed(1))},
]


def formula_options(options):
    names = {"softmax_scale": "scale", "window_size": "window", "alibi_slopes": "slopes"}
    return {names.get(name, name): value for name, value in options.items()}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_results_and_gradients(dense, options):
    q, k, v, dout = draw((2, 20, 4, 16), (2, 13, 2, 16), (2, 13, 2, 16), (2, 20, 4, 16))
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out, lse, nothing = flash_attn.flash_attn_func(*leaves, return_attn_probs=True, **options)
    expected, expected_lse = dense(*leaves, **formula_options(options))
    assert nothing.numel() == 0 and nothing.dtype == q.dtype
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)
    seen = expected_lse.isfinite().transpose(1, 2).unsqueeze(-1)
    ours = torch.autograd.grad(out, leaves, dout)
    wanted = torch.autograd.grad(torch.where(seen, expected, 0.0), leaves, dout.double())
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other.nan_to_num(), rtol=1e-4, atol=1e-5)


def test_rows_without_keys_are_zero_and_their_lse_is_minus_infinity():
    q, k = draw((1, 20, 4, 16), (1, 13, 2, 16))
    out, lse, _ = flash_attn.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert (lse[..., :7] == -math.inf).all() and lse[..., 7:].isfinite().all()
    assert (out[:, :7] == 0).all()


def test_run_time_arguments_use_one_kernel(chosen):
    q, k = draw((1, 20, 4, 16), (1, 13, 2, 16))
    slopes = torch.ones(4)
    for size in (1, 4, 9):
        window = (size, torch.tensor(size))[size == 4]
        window = torch.tensor([size, 2]) if size == 4 else (window, 2)
        options = {"window_size": window, "softcap": 1.0 + size, "alibi_slopes": slopes * size}
        flash_attn.flash_attn_func(q[:, :size], k, k, softmax_scale=size / 7, **options)
    assert set(chosen) == {"d16-fp32-windowrt-softcaprt-alibi"}


def test_packed_forms_equal_the_plain_ones():
    (qkv,) = draw((2, 9, 3, 4, 16))
    qkv.requires_grad_()
    expected = flash_attn.flash_attn_func(*qkv.unbind(2), causal=True)
    (wanted,) = torch.autograd.grad(expected.sum(), qkv)
    cu_seqlens = torch.tensor([0, 9, 18], dtype=torch.int32)
    longest = (cu_seqlens, cu_seqlens, 9, 9)
    flat = qkv.flatten(0, 1)
    calls = {
        "qkv": lambda: flash_attn.flash_attn_qkvpacked_func(qkv, causal=True),
        "kv": lambda: flash_attn.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True),
        "varlen": lambda: flash_attn.flash_attn_varlen_func(*flat.unbind(1), *longest, causal=True),
        "varlen kv": lambda: flash_attn.flash_attn_varlen_kvpacked_func(
            flat[:, 0], flat[:, 1:], *longest, causal=True
        ),
        "varlen qkv": lambda: flash_attn.flash_attn_varlen_qkvpacked_func(
            flat, cu_seqlens, 9, causal=True
        ),
    }
    for name, call in calls.items():
        out = call()
        (grad,) = torch.autograd.grad(out.sum(), qkv)
        torch.testing.assert_close(out.view_as(expected), expected, msg=name)
        torch.testing.assert_close(grad, wanted, msg=name)


def test_lengths_of_packed_sequences(dense):
    q, k = draw((11, 4, 16), (14, 2, 16))
    ends_q, ends_k = [0, 3, 3, 10], [0, 0, 5, 12]
    offsets = [torch.tensor(ends, dtype=torch.int32) for ends in (ends_q, ends_k)]
    out, lse, _ = flash_attn.flash_attn_varlen_func(
        q, k, k, *offsets, 7, 7, causal=True, return_attn_probs=True
    )
    assert (out[:3] == 0).all() and (lse[:, :3] == -math.inf).all() and (out[10:] == 0).all()
    expected, expected_lse = dense(q[None, 3:10], *[k[None, 5:12]] * 2, causal=True)
    torch.testing.assert_close(out[3:10], expected[0].float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse[:, 3:10], expected_lse[0].float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_s_dmask_explains_the_output(packed):
    q, k = draw((2, 9, 4, 16), (2, 13, 2, 16))
    options = {"dropout_p": 0.25, "causal": True, "return_attn_probs": True}
    torch.manual_seed(3)
    if packed:
        offsets = [torch.arange(3, dtype=torch.int32) * n for n in (9, 13)]
        flat = [t.flatten(0, 1) for t in (q, k, k)]
        found = flash_attn.flash_attn_varlen_func(*flat, *offsets, 9, 13, **options)
        out, dmask = found[0].view(q.shape), found[2]
    else:
        out, _, dmask = flash_attn.flash_attn_func(q, k, k, **options)
    assert dmask.shape == (2, 4, 9, 13) and dmask.shape[-1] <= _get_block_size_n(None, 16, True, 1)
    weights = dmask.abs() / dmask.abs().sum(-1, keepdim=True)
    kept = torch.where(dmask > 0, weights, 0.0) / 0.75
    expected = torch.einsum("bhij,bjhd->bihd", kept, k.repeat_interleave(2, 2))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert 0.1 < (dmask < 0).float().sum() / (dmask != 0).sum() < 0.4


def test_dropout_follows_torchs_generator_under_checkpointing():
    q, k, v = (t.requires_grad_() for t in draw(*[(1, 9, 4, 16)] * 3))
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(5)
        arguments = (flash_attn.flash_attn_func, q, k, v, 0.5)
        out = (
            torch.utils.checkpoint.checkpoint(*arguments, use_reentrant=False)
            if checkpointed
            else arguments[0](*arguments[1:])
        )
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_refusals():
    q, k = draw((1, 9, 4, 16), (1, 9, 3, 16))
    with pytest.raises(RuntimeError, match="num_heads to be a multiple"):
        flash_attn.flash_attn_func(q, k, k)
    with pytest.raises(RuntimeError, match="expected a dtype of"):
        flash_attn.flash_attn_func(*[q.long()] * 3)
    with pytest.raises(RuntimeError, match="head_dim from 1 to 256, got 264"):
        flash_attn.flash_attn_func(*draw(*[(1, 2, 1, 264)] * 3))
    with pytest.raises(RuntimeError, match="expected 4 dimensions"):
        flash_attn.flash_attn_func(q[0], k, k)
    with pytest.raises(RuntimeError, match="expected shape .batch, seqlen, 3, heads"):
        flash_attn.flash_attn_qkvpacked_func(q)
    with pytest.raises(NotImplementedError, match="comes later"):
        flash_attn.flash_attn_with_kvcache(q, k, k)
    with pytest.raises(NotImplementedError, match="paged"):
        offsets = torch.tensor([0, 9], dtype=torch.int32)
        flash_attn.flash_attn_varlen_func(
            *[q[0]] * 3, offsets, offsets, 9, 9, block_table=offsets[None]
        )


def test_gradcheck():
    leaves = [t.requires_grad_() for t in draw(*[(1, 5, 2, 8)] * 3, dtype=torch.float64)]
    slopes = torch.tensor([0.5, 0.25])

    def function(q, k, v):
        options = {"window_size": (3, 1), "softcap": 2.0, "alibi_slopes": slopes}
        return flash_attn.flash_attn_func(q, k, v, return_attn_probs=True, **options)[:2]

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_to_one_graph(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        flash_attn.flash_attn_func, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    options = {"window_size": (5, 2)}
    for length in (9, 12):
        q, k, v = (t.requires_grad_() for t in draw(*[(2, length, 4, 16)] * 3))
        results = []
        for function in (flash_attn.flash_attn_func, compiled):
            out = function(q, k, v, **options)
            results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
