"""The options of a flash_attn call -> the variant and the keyword arguments of its kernel."""

from __future__ import annotations

from typing import Any

import torch

from ..generator.errors import ArgumentError
from ..generator.variant import Variant, Window
from ..runtime.attention import checked_dtype, dropout_bits, padded_head_dim

WindowSize = tuple[int, int] | torch.Tensor


class UnsupportedError(ArgumentError, RuntimeError):
    """A call that has no kernel; a RuntimeError, as flash_attn raises."""


def choose(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: tuple[torch.Tensor, torch.Tensor] | None,
    dropout_p: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
) -> tuple[Variant, dict[str, Any]]:
    """(the variant, what its kernel takes besides q, k, v, scale and dropout) of a call.

    Args:
        q: (batch, seqlen_q, num_heads, head_dim), or packed (total_q, num_heads, head_dim).
        k: likewise, of keys.
        v: likewise.
        offsets: (cu_seqlens_q, cu_seqlens_k) of packed sequences, None of dense ones.
        dropout_p: decides the random bits of an element.
        causal: a right bound of 0.
        window_size: (left, right), negative for no bound.
        softcap: 0 for none.
        alibi_slopes: None without.
        deterministic: as the variant's.
    """
    _check_ranks(q, k, v, 4 if offsets is None else 3)
    given = arguments_of(offsets, causal, window_size, softcap, alibi_slopes)
    windowed = "window_left" in given
    variant = Variant(
        padded_head_dim("q", q.shape[-1]),
        padded_head_dim("v", v.shape[-1]),
        checked_dtype(q),
        causal=not windowed and (causal or window_size[1] == 0),
        dropout_bits=dropout_bits(dropout_p),
        deterministic=deterministic,
        layout="dense" if offsets is None else "varlen",
        window=Window(runtime=True) if windowed else None,
        softcap="runtime" if softcap > 0 else None,
        alibi=alibi_slopes is not None,
    )
    return variant, given


def _check_ranks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: int) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != rank:
            layout = "(total, heads, head_dim)" if rank == 3 else "(batch, seqlen, heads, head_dim)"
            got = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ArgumentError(
                f"flash_attn: {name}: expected {rank} dimensions {layout}, got shape {got}."
            )


def arguments_of(
    offsets: tuple[torch.Tensor, torch.Tensor] | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
) -> dict[str, Any]:
    """What the kernel of such a call takes besides q, k, v, scale and dropout, by name."""
    given: dict[str, Any] = {}
    if offsets is not None:
        given["cu_seqlens_q"], given["cu_seqlens_k"] = offsets
    left, right = window_size
    right = 0 if causal else right
    if left >= 0 or right > 0:
        given["window_left"] = left if left >= 0 else None
        given["window_right"] = right if right >= 0 else None
    if softcap > 0:
        given["softcap"] = float(softcap)
    if alibi_slopes is not None:
        given["alibi_slopes"] = alibi_slopes
    return given


def pair_of(window_size: Any) -> tuple[int, int]:
    """``window_size`` as two ints; read by the host where it is a tensor."""
    if isinstance(window_size, torch.Tensor):
        window_size = window_size.tolist()
    left, right = window_size
    return left, right
