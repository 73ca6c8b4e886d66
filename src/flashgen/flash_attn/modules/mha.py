"""Attention modules with the names, arguments and parameters of flash_attn.modules.mha."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...generator.errors import ArgumentError
from ..choice import WindowSize
from ..flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from ..layers.rotary import RotaryEmbedding


def get_alibi_slopes(nheads: int) -> list[float]:
    """ALiBi's slopes: a series, and behind a power of 2 every other one of the next's."""
    power = 1 << (nheads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    more = [2.0 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * power, 2)]
    return slopes + more[: nheads - power]


class _FlashAttention(nn.Module):
    """What the two below share: the options of their calls."""

    alibi_slopes: torch.Tensor | None

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        window_size: WindowSize = (-1, -1),
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size, self.deterministic = window_size, deterministic

    def _options(self, causal: bool | None) -> dict[str, Any]:
        slopes = self.alibi_slopes  # a buffer, which model.half() converts
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "alibi_slopes": None if slopes is None else slopes.float(),
            "window_size": self.window_size,
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_FlashAttention):
    """Attention of packed qkv by flashgen's kernels; dropout while training."""

    def forward(
        self,
        qkv: torch.Tensor,
        causal: bool | None = None,
        cu_seqlens: torch.Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Any:
        """As qkv without its 3: (batch, seqlen, 3, heads, d), or with cu_seqlens (total, ...)."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **options)
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen or 0, **options)


class FlashCrossAttention(_FlashAttention):
    """Attention of q and packed kv by flashgen's kernels; dropout while training."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,  # before the window, as flash_attn has it
        window_size: WindowSize = (-1, -1),
        deterministic: bool = False,
    ) -> None:
        super().__init__(
            causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic
        )

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        causal: bool | None = None,
        cu_seqlens: torch.Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: torch.Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Any:
        """As q: (batch, seqlen_q, heads, d) and kv (batch, seqlen_k, 2, heads_kv, d), or packed."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **options)
        if cu_seqlens_k is None:
            raise ArgumentError("FlashCrossAttention: expected cu_seqlens_k too, got None.")
        longest = (max_seqlen or 0, max_seqlen_k or 0)
        return flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens, cu_seqlens_k, *longest, **options)


class CrossAttention(nn.Module):
    """`FlashCrossAttention` in plain torch, with a padding mask; holds all scores at once."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = nn.Dropout(attention_dropout)

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        causal: bool | None = None,
        key_padding_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As q; key_padding_mask is bool (batch, seqlen_k), true for keys that are seen."""
        k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in kv.unbind(2))
        scale = self.softmax_scale or 1 / math.sqrt(q.shape[-1])
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k * scale)
        hidden = torch.finfo(scores.dtype).min
        if key_padding_mask is not None:
            scores = scores.masked_fill(~key_padding_mask[:, None, None], hidden)
        if self.causal if causal is None else causal:
            rows, columns = scores.shape[-2:]
            later = torch.ones(rows, columns, dtype=torch.bool, device=q.device)
            scores = scores.masked_fill(later.triu(1 + columns - rows), hidden)
        weights = self.drop(torch.softmax(scores, -1, dtype=v.dtype))
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)


class SelfAttention(CrossAttention):
    """`FlashSelfAttention` in plain torch, with a padding mask; holds all scores at once."""

    def forward(  # type: ignore[override]
        self,
        qkv: torch.Tensor,
        causal: bool | None = None,
        key_padding_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(batch, seqlen, heads, d) of qkv (batch, seqlen, 3, heads, d)."""
        return super().forward(qkv[:, :, 0], qkv[:, :, 1:], causal, key_padding_mask)


class MHA(nn.Module):
    """Multi-head attention with its projections; parameters are named as flash_attn's.

    ``fused_bias_fc`` changes no result and is ignored. Caches for generation come later.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_heads_kv: int | None = None,
        cross_attn: bool = False,
        qkv_proj_bias: bool = True,
        out_proj_bias: bool = True,
        dropout: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        layer_idx: int | None = None,
        dwconv: bool = False,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_scale_base: float | None = None,
        rotary_emb_interleaved: bool = False,
        use_alibi: bool = False,
        window_size: WindowSize = (-1, -1),
        fused_bias_fc: bool = False,
        use_flash_attn: bool = False,
        return_residual: bool = False,
        checkpointing: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_heads_kv = num_heads if num_heads_kv is None else num_heads_kv
        if num_heads % self.num_heads_kv or embed_dim % num_heads:
            raise ArgumentError(
                "MHA: expected num_heads to divide embed_dim and be a multiple of num_heads_kv, "
                f"got {embed_dim}, {num_heads}, {self.num_heads_kv}."
            )
        if use_alibi and not use_flash_attn:
            raise ArgumentError("MHA: use_alibi: expected use_flash_attn=True with it.")
        self.head_dim = embed_dim // num_heads
        self.cross_attn, self.causal, self.layer_idx = cross_attn, causal, layer_idx
        self.dwconv, self.use_flash_attn = dwconv, use_flash_attn
        self.return_residual, self.checkpointing = return_residual, checkpointing
        self.rotary_emb_dim = rotary_emb_dim
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        if rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved,
                rotary_emb_scale_base, device,
            )  # fmt: skip
        self._add_projections(qkv_proj_bias, out_proj_bias, place)
        self._add_attention(softmax_scale, dropout, use_alibi, window_size, device)

    def _add_attention(
        self,
        softmax_scale: float | None,
        dropout: float,
        use_alibi: bool,
        window_size: WindowSize,
        device: torch.device | str | None,
    ) -> None:
        slopes = None
        if use_alibi:
            slopes = torch.tensor(get_alibi_slopes(self.num_heads), device=device)
        if self.use_flash_attn:
            more: dict[str, Any] = {"window_size": window_size, "alibi_slopes": slopes}
            self.inner_attn: nn.Module = FlashSelfAttention(
                self.causal, softmax_scale, dropout, **more
            )
            self.inner_cross_attn: nn.Module = FlashCrossAttention(
                self.causal, softmax_scale, dropout, **more
            )
        else:
            self.inner_attn = SelfAttention(self.causal, softmax_scale, dropout)
            self.inner_cross_attn = CrossAttention(self.causal, softmax_scale, dropout)

    def _add_projections(self, bias: bool, out_bias: bool, place: dict[str, Any]) -> None:
        size, kv_size = self.embed_dim, 2 * self.num_heads_kv * self.head_dim
        if self.cross_attn:
            self.Wq = nn.Linear(size, size, bias=bias, **place)
            self.Wkv = nn.Linear(size, kv_size, bias=bias, **place)
        else:
            self.Wqkv = nn.Linear(size, size + kv_size, bias=bias, **place)
        if self.dwconv and self.num_heads_kv == self.num_heads and not self.cross_attn:
            self.dwconv_qkv = _convolution(size + kv_size, place)
        elif self.dwconv:
            self.dwconv_q = _convolution(size, place)
            self.dwconv_kv = _convolution(kv_size, place)
        self.out_proj = nn.Linear(size, size, bias=out_bias, **place)

    def forward(
        self,
        x: torch.Tensor,
        x_kv: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | None = None,
        max_seqlen: int | None = None,
        mixer_subset: Any = None,
        inference_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Attention of x (batch, seqlen, embed_dim), or with cu_seqlens (total, embed_dim).

        Args:
            x: queries' tokens.
            x_kv: those of keys and values, with cross_attn; default x.
            key_padding_mask: bool (batch, seqlen), true for tokens; without use_flash_attn.
            cu_seqlens: int32 (sequences + 1); with use_flash_attn.
            max_seqlen: the longest length, for rotary embeddings of packed tokens.
            mixer_subset: with cross_attn: the places of x that are queries.
            inference_params: comes later.
            kwargs: further arguments of the inner attention.

        Returns:
            As x, or (that, x) with return_residual.
        """
        if inference_params is not None:
            raise NotImplementedError("MHA: inference_params: generation with a cache comes later.")
        if self.use_flash_attn:
            if key_padding_mask is not None:
                raise ArgumentError(
                    "MHA: key_padding_mask: expected None with use_flash_attn. Pack the tokens by "
                    "bert_padding.unpad_input and pass cu_seqlens."
                )
            kwargs |= {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
        else:
            kwargs |= {"key_padding_mask": key_padding_mask}
        if self.cross_attn or self.num_heads_kv != self.num_heads:
            context = self._attend_apart(x, x_kv, mixer_subset, kwargs)
        else:
            qkv = self._convolved("dwconv_qkv", self.Wqkv(x))
            qkv = torch.unflatten(qkv, -1, (3, self.num_heads, self.head_dim))
            if self.rotary_emb_dim > 0:
                qkv = self._turned(qkv, None, kwargs)
            context = self._run(self.inner_attn, qkv, **kwargs)
        out = self.out_proj(context.flatten(-2))
        return (out, x) if self.return_residual else out

    def _attend_apart(
        self,
        x: torch.Tensor,
        x_kv: torch.Tensor | None,
        mixer_subset: Any,
        kwargs: dict[str, Any],
    ) -> torch.Tensor:
        """The inner attention with q and kv in tensors of their own."""
        if self.cross_attn:
            q = self.Wq(x if mixer_subset is None else x[:, mixer_subset])
            kv = self.Wkv(x if x_kv is None else x_kv)
        else:
            q, kv = self.Wqkv(x).split([self.embed_dim, 2 * self.num_heads_kv * self.head_dim], -1)
        q = self._convolved("dwconv_q", q)
        q = torch.unflatten(q, -1, (self.num_heads, self.head_dim))
        kv = self._convolved("dwconv_kv", kv)
        kv = torch.unflatten(kv, -1, (2, self.num_heads_kv, self.head_dim))
        if self.rotary_emb_dim > 0:
            q, kv = self._turned(q, kv, kwargs)
        if kwargs.get("cu_seqlens") is not None and "cu_seqlens_k" not in kwargs:
            kwargs = {**kwargs, "cu_seqlens_k": kwargs["cu_seqlens"]}
        return self._run(self.inner_cross_attn, q, kv, **kwargs)

    def _convolved(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if not self.dwconv:
            return x
        y: torch.Tensor = getattr(self, name)(x.transpose(1, 2))
        return y[..., :-2].transpose(1, 2).contiguous()  # padding is on both sides: causal

    def _turned(self, q: torch.Tensor, kv: torch.Tensor | None, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("cu_seqlens") is not None:
            raise NotImplementedError("MHA: rotary_emb_dim: packed tokens come later.")
        return self.rotary_emb(q, kv)

    def _run(self, attention: nn.Module, *tensors: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        if self.checkpointing:
            found = checkpoint(attention, *tensors, use_reentrant=False, **kwargs)
        else:
            found = attention(*tensors, **kwargs)
        assert isinstance(found, torch.Tensor)
        return found


def _convolution(channels: int, place: dict[str, Any]) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, 3, padding=2, groups=channels, **place)
