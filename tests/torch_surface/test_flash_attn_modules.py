from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest
import torch

from flashgen import flash_attn
from flashgen.flash_attn import bert_padding
from flashgen.flash_attn.layers import rotary
from flashgen.flash_attn.modules import mha
from flashgen.generator.errors import FlashgenError


def draw(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_padding_and_back():
    (x,) = draw((3, 7, 5))
    x.requires_grad_()
    mask = torch.arange(7) < torch.tensor([4, 0, 7])[:, None]
    tokens, indices, offsets, longest, used = bert_padding.unpad_input(x, mask)
    assert tokens.shape == (11, 5) and offsets.tolist() == [0, 4, 4, 11]
    assert offsets.dtype == torch.int32 and longest == 7 and used.tolist() == [4, 0, 7]
    back = bert_padding.pad_input(tokens, indices, 3, 7)
    assert torch.equal(back, torch.where(mask[..., None], x, 0.0))
    (grad,) = torch.autograd.grad(back.sum(), x)
    assert torch.equal(grad, mask[..., None].expand_as(x).float())
    unused = torch.arange(7) == 6
    more = bert_padding.unpad_input(x, mask.int(), unused.int().expand(3, -1) * ~mask)
    assert more[0].shape == (13, 5) and more[4].tolist() == [4, 0, 7]


def test_padding_of_rows_with_several_sequences():
    (x,) = draw((2, 6, 3))
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    tokens, indices, offsets, longest = bert_padding.unpad_input_for_concatenated_sequences(
        x, lengths
    )
    assert torch.equal(tokens, torch.cat([x[0, :5], x[1]])) and longest == 6
    assert offsets.tolist() == [0, 2, 5, 11] and len(indices) == 11


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_turns_pairs(interleaved):
    x, angle = draw((2, 7, 3, 16), (20, 4))
    cos, sin = angle.cos(), angle.sin()
    part = x[..., :8]
    pairs = part.unflatten(-1, (4, 2)) if interleaved else torch.stack(part.chunk(2, -1), -1)
    turn = torch.polar(torch.ones_like(angle), angle)
    for offsets in (3, torch.tensor([0, 5])):
        places = torch.arange(7) + torch.as_tensor(offsets).view(-1, 1)
        product = torch.view_as_complex(pairs.contiguous()) * turn[places][:, :, None]
        turned = torch.view_as_real(product)
        turned = turned.flatten(-2) if interleaved else torch.cat(turned.unbind(-1), -1)
        expected = torch.cat([turned, x[..., 8:]], -1)
        found = rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
        torch.testing.assert_close(found, expected)
        kv = torch.stack([x, x], 2)
        changed = rotary.apply_rotary_emb_kv_(kv, cos, sin, interleaved, offsets)
        assert changed is kv and torch.equal(kv[:, :, 1], x)
        torch.testing.assert_close(kv[:, :, 0], expected)
    packed = rotary.apply_rotary_emb(
        x.flatten(0, 1), cos, sin, interleaved, cu_seqlens=torch.tensor([0, 7, 14])
    )
    apart = rotary.apply_rotary_emb(x, cos, sin, interleaved)
    torch.testing.assert_close(packed.view_as(x), apart)


def test_rotary_scores_depend_on_distance_alone():
    for scale_base in (None, 512.0):
        module = rotary.RotaryEmbedding(16, scale_base=scale_base)
        q = torch.ones(1, 30, 1, 16)
        turned, kv = module(q, torch.ones(1, 30, 2, 1, 16))
        scores = turned[0, :, 0] @ kv[0, :, 0, 0].T
        torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True, "rotary_emb_dim": 16},
        {"causal": True, "num_heads_kv": 2, "dwconv": True},
        {"causal": True, "cross_attn": True, "return_residual": True, "checkpointing": True},
    ],
)
def test_mha_is_the_same_with_and_without_kernels(options):
    torch.manual_seed(0)
    fast, plain = (mha.MHA(64, 4, use_flash_attn=flag, **options) for flag in (True, False))
    plain.load_state_dict(fast.state_dict())
    (x,) = draw((2, 9, 64))
    x.requires_grad_()
    results = []
    for module in (fast, plain):
        out = module(x)
        out = out[0] if options.get("return_residual") else out
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_mha_of_packed_tokens():
    torch.manual_seed(0)
    module = mha.MHA(64, 4, causal=True, use_flash_attn=True)
    (x,) = draw((2, 9, 64))
    offsets = torch.tensor([0, 9, 18], dtype=torch.int32)
    packed = module(x.flatten(0, 1), cu_seqlens=offsets, max_seqlen=9)
    torch.testing.assert_close(packed.view_as(x), module(x))


def test_modules_order_of_arguments_and_refusals():
    slopes = torch.ones(4)
    one = mha.FlashSelfAttention(False, None, 0.0, (3, 4), slopes)
    other = mha.FlashCrossAttention(False, None, 0.0, slopes, (3, 4))
    assert one.window_size == other.window_size == (3, 4)
    assert mha.get_alibi_slopes(4) == [0.25, 0.0625, 0.015625, 0.00390625]
    assert len(mha.get_alibi_slopes(12)) == 12 and mha.get_alibi_slopes(12)[8] == 2**-0.5
    module = mha.MHA(64, 4, use_flash_attn=True)
    with pytest.raises(ValueError, match="key_padding_mask: expected None"):
        module(torch.zeros(1, 2, 64), key_padding_mask=torch.ones(1, 2).bool())
    with pytest.raises(NotImplementedError, match="comes later"):
        module(torch.zeros(1, 2, 64), inference_params=object())


def test_install_is_what_makes_it_importable():
    had = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "flash_attn"}
    flash_attn.install()
    flash_attn.install()  # twice is once
    try:
        import flash_attn as found
        from flash_attn.bert_padding import unpad_input
        from flash_attn.flash_attn_interface import _get_block_size_n  # noqa: F401
        from flash_attn.layers.rotary import apply_rotary_emb  # noqa: F401
        from flash_attn.modules.mha import MHA

        assert found is flash_attn and found.__version__ == "2.8.3" and MHA is mha.MHA
        assert unpad_input is bert_padding.unpad_input
        assert importlib.util.find_spec("flash_attn") is not None
        assert importlib.metadata.version("flash-attn") == "2.8.3"
        assert importlib.metadata.version("torch") != "2.8.3"
    finally:
        flash_attn.uninstall()
    assert "flash_attn" not in sys.modules and "flash_attn.modules.mha" not in sys.modules
    sys.modules["flash_attn"] = torch  # somebody's
    try:
        with pytest.raises(FlashgenError, match="expected no flash_attn to be imported yet"):
            flash_attn.install()
    finally:
        del sys.modules["flash_attn"]
        sys.modules.update(had)


def test_slopes_stay_fp32_in_a_model_of_half_precision():
    module = mha.MHA(64, 4, causal=True, use_alibi=True, use_flash_attn=True).to(torch.bfloat16)
    (x,) = draw((1, 9, 64))
    q, k, v = module.Wqkv(x.bfloat16()).unflatten(-1, (3, 4, 16)).unbind(2)
    slopes = torch.tensor(mha.get_alibi_slopes(4))
    out = flash_attn.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
    assert torch.equal(module(x.bfloat16()), module.out_proj(out.flatten(-2)))
