"""A call of PyTorch's scaled_dot_product_attention -> the variant it needs, and its result."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..generator.errors import ArgumentError
from ..generator.variant import Variant
from .arguments import autocast_is_on, cast_in_autocast
from .attention import checked_dtype, dropout_bits, padded_head_dim
from .bodies import CAPTURE, mark_of
from .calls import NOTHING, call_variant, known_plan
from .captures import CAPTURE_DTYPES
from .ops import PLAIN_TENSORS

_WHERE = "scaled_dot_product_attention"
_MASK_DTYPES = {dtype: name for name, dtype in CAPTURE_DTYPES.items()}
_AXES = "bhqk"


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` by flashgen's kernels.

    A mask is read as it is, broadcast dimensions included, and never copied to the size of the
    scores. One that is the same for all queries, as padding is, is read once for each key, and
    keys of tiles that it hides throughout are neither loaded nor multiplied.

    Args:
        query: (..., num_heads, seqlen_q, head_dim), fp16 or bf16; on the CPU also fp32 and fp64.
        key: (..., num_heads_kv, seqlen_k, head_dim).
        value: (..., num_heads_kv, seqlen_k, head_dim_v).
        attn_mask: broadcastable to (..., num_heads, seqlen_q, seqlen_k): bool, true where a key is
            seen, or a float that is added to the scores, and then differentiable. One of
            ``torch.nn.attention.bias`` is a causal mask.
        dropout_p: probability of dropping an element; torch's default generator seeds it.
        is_causal: query i sees keys up to i; without attn_mask.
        scale: what scores are multiplied by; default 1 / sqrt(head_dim).
        enable_gqa: num_heads_kv may be a divisor of num_heads.

    Returns:
        (..., num_heads, seqlen_q, head_dim_v), differentiable; a row that sees no key is 0.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    if autocast_is_on():
        query, key, value = cast_in_autocast(query, key, value)
    try:
        options = (
            _WHERE, dropout_p, is_causal, scale, enable_gqa,
            torch.are_deterministic_algorithms_enabled(), _kind_of(attn_mask),
        )  # fmt: skip
    except AttributeError:  # told below, as all that is wrong
        return _first_call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    plan = known_plan(query, key, value, options)
    if plan is not None:
        if attn_mask is None:
            again = plan.again(query, key, value)
            return plan(query, key, value)[0] if again is None else again
        if plan.mask_layout is not None:
            mask = attn_mask.as_strided(*plan.mask_layout, attn_mask.storage_offset())
            return plan(query, key, value, NOTHING, (mask,))[0]
    return _first_call(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, options
    )


def _kind_of(mask: torch.Tensor | None) -> tuple[Any, ...] | None:
    """All that decides how ``mask`` is read, but its elements."""
    if mask is None:
        return None
    return type(mask), mask.shape, mask.stride(), mask.dtype, mask.device, mask.requires_grad


def _first_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    options: tuple[Any, ...] | None = None,
) -> torch.Tensor:
    """A call that none before was like, with all of its checks; later ones find its plan."""
    causal: bool | str = "top_left" if is_causal else False
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            _refuse(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if attn_mask is not None:
        if is_causal:
            _refuse("attn_mask: expected None with is_causal=True, got a mask. Put them together")
        attn_mask, causal = _without_bias_class(attn_mask)
    given_four = query.dim() == 4 and key.shape[:1] == query.shape[:1]
    lead, query, key, value = _in_four_dimensions(query, key, value)
    _check_heads(query, key, enable_gqa)
    if causal and query.shape[2] == key.shape[2]:
        causal = True  # both alignments are one: one kernel
    given: dict[str, Any] = {}
    mark = ""
    if attn_mask is not None:
        sizes = (*query.shape[:3], key.shape[2])
        mark, given[CAPTURE] = _mask(attn_mask, lead, sizes, query.dtype)
        if not _is_view(given[CAPTURE], attn_mask):
            options = None
    variant = Variant(
        padded_head_dim("query", query.shape[3]),
        padded_head_dim("value", value.shape[3]),
        checked_dtype(query),
        causal=causal,  # type: ignore[arg-type]
        dropout_bits=dropout_bits(dropout_p),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    out, _, _ = call_variant(
        variant, query, key, value, scale, dropout_p, given, mark=mark, heads_first=True,
        options=options if given_four else None, tensors_known=True,
    )  # fmt: skip
    return out if len(lead) == 1 and lead[0] != -1 else out.reshape(_shape(lead, out))


def _is_view(capture: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether ``capture`` is ``mask`` through other strides, so that a plan can say which."""
    if torch.compiler.is_compiling() or type(mask) not in PLAIN_TENSORS or capture.requires_grad:
        return False
    return capture.data_ptr() == mask.data_ptr()


def _without_bias_class(mask: torch.Tensor) -> tuple[torch.Tensor | None, bool | str]:
    """(mask, causal) of ``mask``, which may be torch.nn.attention.bias's class of causal masks."""
    if type(mask) is torch.Tensor or type(mask) is torch.nn.Parameter:
        return mask, False
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(mask, CausalBias):
        return mask, False
    return None, True if mask.variant == CausalVariant.LOWER_RIGHT else "top_left"


def _in_four_dimensions(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[tuple[int, ...], torch.Tensor, torch.Tensor, torch.Tensor]:
    """(what stands before heads, and the three as (batch, heads, seqlen, head_dim)).

    Without heads, (batch, seqlen, head_dim) or less, every matrix is a batch entry of one head,
    and what stands before is followed by -1.
    """
    tensors = (query, key, value)
    rank = query.dim()
    if rank < 2 or any(tensor.dim() != rank for tensor in tensors):
        got = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        _refuse(f"query, key, value: expected as many dimensions, two or more, got {got}")
    if rank == 4:
        batch = max(query.shape[0], key.shape[0]) if key.shape[0] == 1 else query.shape[0]
        if key.shape[0] == 1 != batch and value.shape[0] == 1:
            key, value = (t.expand(batch, -1, -1, -1) for t in (key, value))
        return (batch,), query, key, value
    if rank < 4:
        lead = (*query.shape[:-2], -1)
        query, key, value = (t.reshape(-1, 1, *t.shape[-2:]) for t in tensors)
        return lead, query, key, value
    lead = tuple(query.shape[:-3])
    query, key, value = (t.reshape(-1, *t.shape[-3:]) for t in tensors)
    return lead, query, key, value


def _shape(lead: tuple[int, ...], out: torch.Tensor) -> tuple[int, ...]:
    """The shape of the result for what stood before heads."""
    if lead[-1] == -1:
        return (*lead[:-1], *out.shape[2:])
    return (*lead, *out.shape[1:])


def _check_heads(query: torch.Tensor, key: torch.Tensor, enable_gqa: bool) -> None:
    heads, heads_kv = query.shape[1], key.shape[1]
    if heads != heads_kv and not enable_gqa and heads_kv != 1:
        _refuse(
            f"key: expected {heads} heads as query, got {heads_kv}. Set enable_gqa=True where "
            "heads share keys"
        )


def _mask(
    mask: torch.Tensor,
    lead: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
) -> tuple[str, torch.Tensor]:
    """(what the key ends in, the capture) of a mask for scores of ``sizes``."""
    if not isinstance(mask, torch.Tensor):
        _refuse(f"attn_mask: expected a torch.Tensor or None, got {type(mask).__name__}")
    if mask.dtype not in (torch.bool, torch.float32, dtype):
        _refuse(
            f"attn_mask: expected dtype torch.bool, torch.float32 or {dtype} as query, got "
            f"{mask.dtype}. Convert it"
        )
    mask = _mask_in_four_dimensions(mask, lead, sizes)
    axes = ""
    index: list[int | slice] = []
    capture_sizes = []
    for axis, (name, size) in enumerate(zip(_AXES, sizes, strict=True)):
        # a dimension that is one place in memory is one that broadcasts; but expand's gradient
        # belongs to the whole of it
        same = mask.shape[axis] == 1 or (mask.stride(axis) == 0 and not mask.requires_grad)
        if name != "k" and same:
            index.append(0)
        else:
            axes += name
            index.append(slice(None))
            capture_sizes.append(size)
    capture = mask[tuple(index)].expand(capture_sizes)
    grad = mask.requires_grad and torch.is_grad_enabled()
    return _mark(axes, _MASK_DTYPES[mask.dtype], grad), capture if grad else capture.detach()


def _mask_in_four_dimensions(
    mask: torch.Tensor, lead: tuple[int, ...], sizes: tuple[int, int, int, int]
) -> torch.Tensor:
    """``mask`` as (batch or 1, num_heads or 1, seqlen_q or 1, seqlen_k or 1)."""
    wanted = (*lead[:-1], *sizes[2:]) if lead[-1] == -1 else (*lead, *sizes[1:])
    got = tuple(mask.shape)
    padded = (1,) * (len(wanted) - len(got)) + got
    if len(padded) != len(wanted) or any(
        a not in (1, b) for a, b in zip(padded, wanted, strict=True)
    ):
        _refuse(f"attn_mask: expected a shape that broadcasts to {wanted}, got {got}")
    mask = mask.reshape(padded) if padded != got else mask
    if lead[-1] == -1:
        mask = mask.unsqueeze(-3)
    batches = len(padded) - (2 if lead[-1] == -1 else 3)
    if batches == 1:
        return mask
    if all(size == 1 for size in padded[:batches]):
        return mask.reshape(1, *mask.shape[batches:])
    expanded = mask.expand(*(lead[:-1] if lead[-1] == -1 else lead), *mask.shape[batches:])
    return expanded.reshape(sizes[0], *mask.shape[batches:])


def _mark(axes: str, dtype: str, grad: bool) -> str:
    """`bodies.mark_of`; a constant to torch.compile."""
    if torch.compiler.is_compiling():
        from .constants import constant_mark

        return constant_mark(axes, dtype, grad)
    return mark_of(axes, dtype, grad)


def _refuse(what: str) -> NoReturn:
    raise ArgumentError(f"{_WHERE}: {what}.")
