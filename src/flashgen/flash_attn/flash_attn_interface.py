"""FlashAttention-2's functions -> flashgen's kernels: same arguments, same results.

Causal masks and windows are aligned to the last query and key. Windows, softcaps, slopes, lengths
and dropout's probability are arguments of one kernel; no value of theirs builds another.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..generator.errors import ArgumentError
from ..runtime.arguments import autocast_is_on, cast_in_autocast
from ..runtime.calls import NOTHING, call_variant, known_plan
from .choice import UnsupportedError, WindowSize, arguments_of, choose, pair_of
from .dmask import dropped_weights

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor]
ONE_BLOCK = 1 << 30  # more keys than a sequence has

USE_TRITON_ROCM = False


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """softmax(q k^T * softmax_scale) v.

    Args:
        q: (batch, seqlen_q, num_heads, head_dim), fp16 or bf16; on the CPU also fp32 and fp64.
        k: (batch, seqlen_k, num_heads_kv, head_dim); num_heads_kv divides num_heads.
        v: (batch, seqlen_k, num_heads_kv, head_dim_v).
        dropout_p: probability of dropping an element; torch's default generator seeds it.
        softmax_scale: default 1 / sqrt(head_dim).
        causal: query i sees keys up to i + seqlen_k - seqlen_q.
        window_size: (left, right): keys seen before and after that one; negative for all.
        softcap: scores become softcap * tanh(score / softcap); 0 for none.
        alibi_slopes: fp32 (num_heads) or (batch, num_heads): a score loses the slope times the
            distance of its key.
        deterministic: gradients repeat bit for bit.
        return_attn_probs: for tests: also lse and S_dmask.

    Returns:
        out, (batch, seqlen_q, num_heads, head_dim_v); or (out, lse, S_dmask): lse fp32 (batch,
        num_heads, seqlen_q), -inf where a row sees no key; S_dmask (batch, num_heads, seqlen_q,
        seqlen_k), exp(score - its row's largest) with a minus sign where dropped, or empty without
        dropout.

    Raises:
        UnsupportedError: a RuntimeError; says which argument is wrong and what was expected.
    """
    options = (softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend(q, k, v, None, dropout_p, *options, return_attn_probs)


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_func` of keys and values in one tensor, (batch, seqlen_k, 2, num_heads_kv, d)."""
    k, v = _unpacked("kv", kv, 5, 2)
    options = (softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend(q, k, v, None, dropout_p, *options, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_func` of all three in one tensor, (batch, seqlen, 3, num_heads, head_dim)."""
    q, k, v = _unpacked("qkv", qkv, 5, 3)
    options = (softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend(q, k, v, None, dropout_p, *options, return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Result:
    """`flash_attn_func` of packed sequences.

    Args:
        q: (total_q, num_heads, head_dim); sequence i is rows cu_seqlens_q[i] to [i + 1].
        k: (total_k, num_heads_kv, head_dim).
        v: (total_k, num_heads_kv, head_dim_v).
        cu_seqlens_q: int32 or int64 (sequences + 1).
        cu_seqlens_k: likewise.
        max_seqlen_q: kept for its place; kernels need no longest length.
        max_seqlen_k: likewise.
        dropout_p: as in `flash_attn_func`, and all that follow.
        softmax_scale: likewise.
        causal: likewise, by the lengths of each sequence.
        window_size: likewise.
        softcap: likewise.
        alibi_slopes: likewise; batch is sequences.
        deterministic: likewise.
        return_attn_probs: likewise; lse is (num_heads, total_q), S_dmask (sequences, num_heads,
            longest queries, longest keys).
        block_table: of a paged cache, which comes later.

    Raises:
        UnsupportedError: as `flash_attn_func`.
        NotImplementedError: on a block_table.
    """
    if block_table is not None:
        _later("flash_attn_varlen_func: block_table: paged keys and values")
    offsets = (cu_seqlens_q, cu_seqlens_k)
    options = (softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend(q, k, v, offsets, dropout_p, *options, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_varlen_func` of keys and values in one tensor, (total_k, 2, num_heads_kv, d)."""
    k, v = _unpacked("kv", kv, 4, 2)
    offsets = (cu_seqlens_q, cu_seqlens_k)
    options = (softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend(q, k, v, offsets, dropout_p, *options, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: WindowSize = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_varlen_func` of all three in one tensor, (total, 3, num_heads, head_dim)."""
    q, k, v = _unpacked("qkv", qkv, 4, 3)
    offsets = (cu_seqlens, cu_seqlens)
    options = (softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend(q, k, v, offsets, dropout_p, *options, return_attn_probs)


def flash_attn_with_kvcache(*args: Any, **kwargs: Any) -> NoReturn:
    """Decoding with a cache of keys and values; comes later.

    Raises:
        NotImplementedError: always.
    """
    _later("flash_attn_with_kvcache")


def _later(what: str) -> NoReturn:
    raise NotImplementedError(
        f"{what}: expected a call for training or prefill, as decoding with a cache comes later. "
        "Call flash_attn_func on the keys and values so far."
    )


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: tuple[torch.Tensor, torch.Tensor] | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: WindowSize,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
) -> Result:
    if type(window_size) is not tuple:
        window_size = pair_of(window_size)
    if autocast_is_on():
        q, k, v = cast_in_autocast(q, k, v)
    packed = offsets is not None
    options = (
        "flash_attn", packed, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes is None, deterministic,
    )  # fmt: skip
    plan = known_plan(q, k, v, options)
    if not return_attn_probs and plan and (again := plan.again(q, k, v)) is not None:
        return again
    given = NOTHING
    try:
        if plan is None:
            variant, given = choose(
                q, k, v, offsets, dropout_p, causal, window_size, softcap, alibi_slopes,
                deterministic,
            )  # fmt: skip
            out, lse, rng_state = call_variant(
                variant, q, k, v, softmax_scale, dropout_p, given, options=options
            )
        else:
            if plan.signature is not None or return_attn_probs:
                given = arguments_of(offsets, causal, window_size, softcap, alibi_slopes)
            out, lse, rng_state = plan(q, k, v, given)
    except ArgumentError as error:
        raise UnsupportedError(*error.args) from None
    if not return_attn_probs:
        return out
    if rng_state is None:
        return out, lse, q.new_empty(0)
    if plan is not None:
        variant = plan.kernel.variant
    return out, lse, dropped_weights(variant, q, k, softmax_scale, dropout_p, rng_state, given)


def _unpacked(name: str, tensor: torch.Tensor, rank: int, count: int) -> tuple[torch.Tensor, ...]:
    """The parts of a packed tensor, as views; their gradients are packed in one copy."""
    if tensor.dim() != rank or tensor.shape[-3] != count:
        sizes = "(total, " if rank == 4 else "(batch, seqlen, "
        raise UnsupportedError(
            f"flash_attn: {name}: expected shape {sizes}{count}, heads, head_dim), got "
            f"{tuple(tensor.shape)}."
        )
    return tensor.unbind(-3)


def maybe_contiguous(x: torch.Tensor | None) -> torch.Tensor | None:
    """``x``, copied where its last dimension isn't contiguous."""
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def round_multiple(x: int, m: int) -> int:
    """``x`` rounded up to a multiple of ``m``."""
    return (x + m - 1) // m * m


def _get_block_size_n(
    device: torch.device, head_dim: int, is_dropout: bool, is_causal: bool
) -> int:
    """Keys of a block in S_dmask, which is relative to the whole row here: all of them."""
    return ONE_BLOCK
