"""flashgen as PyTorch's flash backend: its operators of flash attention -> flashgen's kernels."""

from __future__ import annotations

from typing import Any

import torch

from ..generator.errors import FlashgenError
from ..generator.variant import PASSES, Variant
from ..runtime import arguments, calls
from ..runtime.captures import NO_EXTRAS
from .choice import UnsupportedError, choose

NAME = "flashgen"


def register_flash_backend() -> None:
    """Tell PyTorch of flashgen: ``activate_flash_attention_impl("flashgen")`` then uses it.

    From there on torch's own scaled_dot_product_attention and varlen_attn run flashgen's kernels on
    CUDA wherever they choose the flash backend, and unmodified models with them.
    ``restore_flash_attention_impl()`` ends it. Both are in torch.nn.attention.

    Raises:
        FlashgenError: when this torch has no such registry.
    """
    register = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register is None:
        raise FlashgenError(
            "register_flash_backend: expected torch.nn.attention.register_flash_attention_impl, "
            f"got torch {torch.__version__} without it. Update torch, or call "
            "flashgen.scaled_dot_product_attention."
        )
    register(NAME, register_fn=activate)


class Activation:
    """Keeps flashgen's kernels behind torch's operators until ``remove``."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library: torch.library.Library | None = library

    def remove(self) -> None:
        """Give the operators back to torch's own kernels."""
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
        self._library = None


def activate(device_key: str = "CUDA") -> Activation:
    """Put flashgen's kernels behind torch's operators of flash attention, on one kind of device."""
    library = torch.library.Library("aten", "IMPL", device_key)  # type: ignore[no-untyped-call]
    for name, function in (
        ("_scaled_dot_product_flash_attention", _dense_forward),
        ("_scaled_dot_product_flash_attention_backward", _dense_backward),
        ("_flash_attention_forward", _forward),
        ("_flash_attention_backward", _backward),
    ):
        library.impl(name, function, device_key)  # type: ignore[no-untyped-call]
    return Activation(library)


@torch.no_grad()
def _dense_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Of (batch, heads, seqlen, head_dim); a causal mask is aligned to the last query and key."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    lengths = (q.shape[1], k.shape[1])
    found = _forward(
        q, k, v, None, None, *lengths, dropout_p, is_causal, return_debug_mask, scale=scale
    )
    out = found[0].transpose(1, 2)
    if value.shape[3] == query.shape[3]:
        out = _laid_out_as(query, out)
    return (out, found[1], None, None, *lengths, *found[2:])


@torch.no_grad()
def _dense_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    dout, q, k, v, o = (t.transpose(1, 2) for t in (grad_out, query, key, value, out))
    grads = _backward(
        dout, q, k, v, o, logsumexp, None, None, max_q, max_k,
        dropout_p, is_causal, philox_seed, philox_offset, scale=scale,
    )  # fmt: skip
    return tuple(grad.transpose(1, 2) for grad in grads)


@torch.no_grad()
def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    alibi_slopes: torch.Tensor | None = None,
    **unsupported: Any,
) -> tuple[Any, ...]:
    """Of (batch, seqlen, heads, head_dim) or packed (total, heads, head_dim)."""
    given_more = [name for name, value in unsupported.items() if value is not None]
    if return_debug_mask or given_more:
        names = ", ".join(given_more) or "return_debug_mask"
        raise UnsupportedError(
            f"flash attention by flashgen: expected no {names}. "
            "torch.nn.attention.restore_flash_attention_impl() gives torch's own kernels back."
        )
    window = (window_size_left, window_size_right)
    options = (
        "aten", cum_seq_q is None, dropout_p, scale, is_causal, window, alibi_slopes is None,
        torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    plan = calls.known_plan(query, key, value, options)
    if plan is not None and plan.signature is None:
        out, lse, state = plan(query, key, value)
    else:
        variant, given = _choose(
            query, key, value, cum_seq_q, cum_seq_k, dropout_p, is_causal, window, alibi_slopes
        )
        out, lse, state = calls.call_variant(
            variant, query, key, value, scale, dropout_p, given, options=options
        )
    if state is None:
        state = torch.empty(2, dtype=torch.int64, device=query.device)
    unused = torch.empty((), dtype=torch.uint64, device=query.device)
    return out, lse, state.view(torch.uint64), unused, query.new_empty(0)


@torch.no_grad()
def _backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: torch.Tensor,
    unused: torch.Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[torch.Tensor, ...]:
    window = (window_size_left, window_size_right)
    variant, given = _choose(
        query, key, value, cum_seq_q, cum_seq_k, dropout_p, is_causal, window, None
    )
    arguments.check_inputs(variant, query, key, value)  # of a head size that kernels have
    threshold = arguments.threshold_of(variant, dropout_p)
    extras = calls.find_signature(variant.key).bind(query, key, given) if given else NO_EXTRAS
    kernel = calls.find_kernel(variant.key, query.device, PASSES)
    grads = kernel.run_backward(
        grad_out, query, key, value, out, logsumexp, None,
        rng_state.view(torch.int64) if threshold else None,
        arguments.scale_of(variant, scale), threshold, extras.tensors, extras.numbers,
    )  # fmt: skip
    return tuple(map(_laid_out_as, (query, key, value), grads))


def _laid_out_as(like: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """``result`` in the order of dimensions of ``like``, which torch.compile counts on."""
    if result.stride() == like.stride():
        return result
    wanted = torch.empty_like(like)  # of gaps in like it has none
    return result if result.stride() == wanted.stride() else wanted.copy_(result)


def _choose(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cum_seq_q: torch.Tensor | None,
    cum_seq_k: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    window: tuple[int | None, int | None],
    alibi_slopes: torch.Tensor | None,
) -> tuple[Variant, dict[str, Any]]:
    offsets = None if cum_seq_q is None or cum_seq_k is None else (cum_seq_q, cum_seq_k)
    left, right = (-1 if bound is None else bound for bound in window)
    deterministic = torch.are_deterministic_algorithms_enabled()
    return choose(
        q, k, v, offsets, dropout_p, is_causal, (left, right), 0.0, alibi_slopes, deterministic
    )
