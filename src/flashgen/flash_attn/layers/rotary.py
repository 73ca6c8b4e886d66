"""Rotary position embeddings: the names of flash_attn.layers.rotary, in torch."""

from __future__ import annotations

import torch
from torch import nn


def rotate_half(x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Pairs (a, b) of the last dimension as (-b, a): its halves, or neighbours if interleaved."""
    if interleaved:
        pairs = torch.unflatten(x, -1, (-1, 2))
        return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rotary_emb_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """`apply_rotary_emb` without offsets: x (batch, seqlen, heads, head_dim)."""
    return apply_rotary_emb(x, cos[: x.shape[1]], sin[: x.shape[1]], interleaved)


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    """``x`` with the first rotary_dim elements of each row turned by its position's angles.

    Args:
        x: (batch, seqlen, heads, head_dim); with cu_seqlens (total, heads, head_dim).
        cos: (positions, rotary_dim / 2).
        sin: likewise.
        interleaved: pairs are neighbours instead of halves.
        inplace: write to x too.
        seqlen_offsets: position of each sequence's first token: an int, or int (batch,).
        cu_seqlens: int32 (sequences + 1).
        max_seqlen: kept for its place.

    Returns:
        As x; differentiable.
    """
    cos, sin = (_at_positions(t, x, seqlen_offsets, cu_seqlens) for t in (cos, sin))
    width = 2 * cos.shape[-1]
    if interleaved:
        cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))
    else:
        cos, sin = (torch.cat((t, t), -1) for t in (cos, sin))
    part = x[..., :width]
    turned = (part * cos + rotate_half(part, interleaved) * sin).to(x.dtype)
    if inplace:
        part.copy_(turned)
        return x
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), -1)


def _at_positions(
    table: torch.Tensor,
    x: torch.Tensor,
    seqlen_offsets: int | torch.Tensor,
    cu_seqlens: torch.Tensor | None,
) -> torch.Tensor:
    """The rows of ``table`` for the tokens of ``x``, broadcast over heads."""
    if cu_seqlens is not None:
        rows = torch.arange(x.shape[0], device=x.device)
        sequence = torch.bucketize(rows, cu_seqlens[1:], right=True)
        sequence = sequence.clamp(max=len(cu_seqlens) - 2)  # rows behind the last sequence
        positions = rows - cu_seqlens[sequence]
        if isinstance(seqlen_offsets, torch.Tensor):
            seqlen_offsets = seqlen_offsets[sequence]
        return table[(positions + seqlen_offsets).clamp(max=len(table) - 1)].unsqueeze(-2)
    if isinstance(seqlen_offsets, torch.Tensor):
        positions = torch.arange(x.shape[1], device=x.device) + seqlen_offsets.unsqueeze(1)
        return table[positions].unsqueeze(-2)
    return table[seqlen_offsets : seqlen_offsets + x.shape[1]].unsqueeze(-2)


def apply_rotary_emb_qkv_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cos_k: torch.Tensor | None = None,
    sin_k: torch.Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    num_heads_q: int | None = None,
) -> torch.Tensor:
    """``qkv`` with queries and keys turned, in place (in a copy of a leaf that has a gradient).

    Args:
        qkv: (batch, seqlen, 3, heads, head_dim), or with num_heads_q (batch, seqlen, num_heads_q +
            2 * num_heads_kv, head_dim).
        cos: of queries, (positions, rotary_dim / 2).
        sin: likewise.
        cos_k: of keys; default cos.
        sin_k: likewise.
        interleaved: as in `apply_rotary_emb`.
        seqlen_offsets: likewise.
        num_heads_q: of a qkv of four dimensions.
    """
    qkv = _writable(qkv)
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        if num_heads_q is None:
            raise ValueError("apply_rotary_emb_qkv_: expected num_heads_q for 4 dimensions.")
        heads_kv = (qkv.shape[2] - num_heads_q) // 2
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + heads_kv]
    cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    apply_rotary_emb(q, cos, sin, interleaved, True, seqlen_offsets)
    apply_rotary_emb(k, cos_k, sin_k, interleaved, True, seqlen_offsets)
    return qkv


def apply_rotary_emb_kv_(
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
) -> torch.Tensor:
    """``kv`` (batch, seqlen, 2, heads, head_dim) with keys turned, as `apply_rotary_emb_qkv_`."""
    kv = _writable(kv)
    apply_rotary_emb(kv[:, :, 0], cos, sin, interleaved, True, seqlen_offsets)
    return kv


def _writable(tensor: torch.Tensor) -> torch.Tensor:
    # autograd lets no one write to a leaf that it wants the gradient of
    needs_copy = tensor.is_leaf and tensor.requires_grad and torch.is_grad_enabled()
    return tensor.clone() if needs_copy else tensor


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions; keeps the angles of the longest length so far.

    With ``scale_base`` queries grow and keys shrink with their position, as in xPos.
    """

    inv_freq: torch.Tensor
    scale: torch.Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base = dim, float(base)
        self.interleaved, self.scale_base = interleaved, scale_base
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", self.base ** (-steps / dim), persistent=False)
        scale = None if scale_base is None else (steps + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._tables: tuple[torch.Tensor, ...] = ()

    def tables(
        self, seqlen: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[torch.Tensor, ...]:
        """(cos, sin, cos_k, sin_k) of at least ``seqlen`` positions, (positions, dim / 2)."""
        known = self._tables
        if known and len(known[0]) >= seqlen and known[0].device == device:
            if known[0].dtype == dtype and not (self.training and known[0].is_inference()):
                return known
        positions = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = torch.outer(positions, self.inv_freq.to(device, torch.float32))
        cos, sin = angles.cos(), angles.sin()
        if self.scale is None or self.scale_base is None:
            found = (cos, sin, cos, sin)
        else:
            power = (positions - seqlen // 2) / self.scale_base
            scale = self.scale.to(device) ** power.unsqueeze(1)
            found = (cos * scale, sin * scale, cos / scale, sin / scale)
        self._tables = tuple(table.to(dtype) for table in found)
        return self._tables

    def forward(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor | None = None,
        seqlen_offset: int | torch.Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Qkv turned; or (q, kv) turned, of q (batch, seqlen, heads, head_dim) and kv."""
        seqlen = qkv.shape[1] if max_seqlen is None else max_seqlen
        if max_seqlen is None and isinstance(seqlen_offset, int):
            seqlen += seqlen_offset
        cos, sin, cos_k, sin_k = self.tables(seqlen, qkv.device, qkv.dtype)
        if kv is None:
            angles = (cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q)
            return apply_rotary_emb_qkv_(qkv, *angles)
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, False, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
