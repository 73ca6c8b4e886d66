"""A plain attention call -> the variant it needs, and its result."""

from __future__ import annotations

from typing import Any

import torch

from ..generator.errors import ArgumentError
from ..generator.variant import HEAD_DIM_STEP, MAX_HEAD_DIM, Variant, Window
from . import arguments
from .calls import NOTHING, call_variant, known_plan


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * softmax_scale) v by the kernel for these dtypes, sizes and options.

    The kernel is built when a variant is first used, with one line in the log; every later call
    and every other shape uses the same one. Head sizes that are no multiple of 8 are padded
    with zeros, which changes no result.

    Args:
        q: (batch, seqlen_q, num_heads, head_dim); fp16 or bf16, on the CPU also fp32 and fp64.
        k: (batch, seqlen_k, num_heads_kv, head_dim); num_heads_kv divides num_heads.
        v: (batch, seqlen_k, num_heads_kv, head_dim_v).
        causal: query i sees keys up to i + seqlen_k - seqlen_q (bottom-right aligned).
        dropout_p: probability of dropping an element, rounded to a multiple of 1/256, or of
            1/65536 where that would round to 0 or 1; torch's default generator seeds it.
        softmax_scale: default 1 / sqrt(head_dim).
        deterministic: every gradient is bitwise reproducible.
        window: (left, right): keys that a query sees before and after its own place,
            i + seqlen_k - seqlen_q; None for all. Any numbers use the same kernel.
        softcap: scores become softcap * tanh(score / softcap). Any number uses the same kernel.
        alibi_slopes: fp32 (num_heads) or (batch, num_heads): a score loses the slope times the
            distance of its key from the query's place.
        sink: (num_heads), a float dtype: a logit of each head that joins the softmax's
            denominator; differentiable.
        return_lse: also give lse, natural log, (batch, num_heads, seqlen_q), fp32 (fp64).

    Returns:
        out, (batch, seqlen_q, num_heads, head_dim_v), or (out, lse); both differentiable.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    if arguments.autocast_is_on():
        q, k, v = arguments.cast_in_autocast(q, k, v)
    options = (
        "attention", causal, dropout_p, softmax_scale, deterministic, window, softcap,
        alibi_slopes is None, getattr(sink, "requires_grad", None),
    )  # fmt: skip
    plan = known_plan(q, k, v, options)
    if plan is not None:
        if not return_lse and (again := plan.again(q, k, v)) is not None:
            return again
        given = _given(window, softcap, alibi_slopes, sink) if plan.signature else NOTHING
        out, lse, _ = plan(q, k, v, given)
        return (out, lse) if return_lse else out
    head_dim, head_dim_v = _head_dims(q, k, v)
    _check_switches(causal=causal, deterministic=deterministic)
    variant = Variant(
        padded_head_dim("q", head_dim),
        padded_head_dim("v", head_dim_v),
        checked_dtype(q),
        causal,
        dropout_bits(dropout_p),
        deterministic,
        window=None if window is None else Window(runtime=True),
        softcap=None if softcap is None else "runtime",
        alibi=alibi_slopes is not None,
        sink="" if sink is None else "learned" if sink.requires_grad else "fixed",
    )
    given = _given(window, softcap, alibi_slopes, sink)
    out, lse, _ = call_variant(variant, q, k, v, softmax_scale, dropout_p, given, options=options)
    return (out, lse) if return_lse else out


def _check_switches(**switches: object) -> None:
    """Raise an ArgumentError unless each is True or False: a word would count as True."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ArgumentError(
                f"attention: {name}: expected True or False, got {value!r:.40}. Convert it."
            )


def _head_dims(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int]:
    """Sizes of a row of q and of v, of tensors of four dimensions."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
            got = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ArgumentError(
                f"attention: {name}: expected a tensor (batch, seqlen, heads, head_dim), got {got}."
            )
    if k.shape[3] != q.shape[3]:
        raise ArgumentError(
            f"attention: k: expected head_dim {q.shape[3]} as q, got {k.shape[3]}. The layout is "
            "(batch, seqlen, heads, head_dim)."
        )
    return q.shape[3], v.shape[3]


def _given(
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    alibi_slopes: torch.Tensor | None,
    sink: torch.Tensor | None,
) -> dict[str, Any]:
    """The arguments that a variant has because they are given, by the names of its calls."""
    found: dict[str, Any] = {"softcap": softcap, "alibi_slopes": alibi_slopes, "sink": sink}
    found = {name: value for name, value in found.items() if value is not None}
    if window is not None:
        if not isinstance(window, tuple) or len(window) != 2:
            raise ArgumentError(
                f"attention: window: expected a pair (left, right) or None, got {window!r:.40}."
            )
        found["window_left"], found["window_right"] = window
    return found


def padded_head_dim(name: str, head_dim: int) -> int:
    """``head_dim`` rounded up to what kernels are made for."""
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ArgumentError(
            f"attention: {name}: expected head_dim from 1 to {MAX_HEAD_DIM}, got {head_dim}. "
            "Split the head: larger ones have no kernel."
        )
    return -(-head_dim // HEAD_DIM_STEP) * HEAD_DIM_STEP


def checked_dtype(q: torch.Tensor) -> str:
    """The name of q's dtype, which its device has kernels for."""
    name = arguments.DTYPE_NAMES.get(q.dtype)
    allowed = ("fp16", "bf16") if q.is_cuda else tuple(arguments.TORCH_DTYPES)
    if name is None or name not in allowed:
        names = ", ".join(str(arguments.TORCH_DTYPES[a]) for a in allowed)
        raise ArgumentError(
            f"attention: q: expected a dtype of {names} on {q.device}, got {q.dtype}. Convert it."
        )
    return name


def dropout_bits(dropout_p: float) -> int:
    """The bits that give ``dropout_p`` a threshold of its own; 0 without dropout."""
    number = isinstance(dropout_p, int | float) and not isinstance(dropout_p, bool)
    if not number or not 0 <= dropout_p <= 1:
        raise ArgumentError(
            f"attention: dropout_p: expected a probability from 0 to 1, got {dropout_p!r:.40}."
        )
    if dropout_p == 0:
        return 0
    return 8 if dropout_p == 1 or 1 / 512 < dropout_p < 1 - 1 / 512 else 16
