"""An attention call of a host -> the kernel for what it has, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..runtime.arguments import DTYPE_NAMES
from ..runtime.attention import checked_dtype, dropout_bits, padded_head_dim
from ..runtime.calls import call_variant, pad_heads
from .choice import Choice, find_kernel, mark_of, presets_of
from .lazy_mask import MaskParts

_Given = dict[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Arguments:
    """A call, in flashgen's layout.

    Attributes:
        q: (batch, queries, num_heads, head_dim).
        k: (batch, keys, num_heads_kv, head_dim).
        v: (batch, keys, num_heads_kv, head_dim_v).
        mask: its parts; or a tensor (batch or 1, num_heads or 1, queries or 1, keys or more), bool
            or float.
        dropout_p: probability of dropping an element.
        softmax_scale: None for 1 / sqrt(head_dim).
        softcap: None without.
        sink: (num_heads), None without.
        bias: (batch or 1, num_heads or 1, queries, keys or more), None without.
        cu_seqlens_q: (sequences + 1), where the sequences of a batch of one row start; None for
            one sequence in each row.
        cu_seqlens_k: likewise.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | MaskParts | None
    dropout_p: float = 0.0
    softmax_scale: float | None = None
    softcap: float | None = None
    sink: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None


def attend(call: Arguments) -> torch.Tensor:
    """(batch, queries, num_heads, head_dim_v), contiguous and differentiable.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    q, k, v = _in_one_dtype(call.q, call.k, call.v)
    fields: _Given = {}
    given: _Given = {}
    bias = call.bias
    if isinstance(call.mask, MaskParts):
        k, v = _banded(call.mask, q, k, v, fields, given)
        _seen_by_parts(call, k.shape[1], fields, given)
    elif call.mask is not None and call.mask.dtype is torch.bool:
        _seen_by_tensor(call.mask, q, k, fields, given)
    elif call.mask is not None:
        bias = call.mask if bias is None else bias + call.mask
        fields["bias_hides"] = True
    if bias is not None:
        _biased(bias, q, k, fields, given)
    if call.softcap is not None:
        fields["softcap"], given["softcap"] = True, float(call.softcap)
    if call.sink is not None:
        fields["sink"] = "learned" if call.sink.requires_grad else "fixed"
        given["sink"] = call.sink
    return _run(call, q, k, v, fields, given)


def _in_one_dtype(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k, v in autocast's dtype, else in v's: rotary embeddings may have promoted q and k."""
    kind = q.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else v.dtype
    return tuple(tensor if tensor.dtype is dtype else tensor.to(dtype) for tensor in (q, k, v))


def _banded(
    parts: MaskParts,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    fields: _Given,
    given: _Given,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The keys up to the last query's place, to which kernels align causal masks and windows."""
    if parts.right == 0 and q.shape[1] + parts.shift != k.shape[1]:
        keys = q.shape[1] + parts.shift
        k, v = k[:, :keys], v[:, :keys]
    if parts.left is not None or parts.right not in (None, 0):
        fields["window"] = True
        given |= {"window_left": parts.left, "window_right": parts.right}
    else:
        fields["causal"] = parts.right == 0 and q.shape[1] > 1  # one query sees them all
    return k, v


def _seen_by_parts(call: Arguments, keys: int, fields: _Given, given: _Given) -> None:
    parts = call.mask
    assert isinstance(parts, MaskParts)
    if call.cu_seqlens_q is not None and parts.keep is None:
        fields["varlen"] = True
        given |= {"cu_seqlens_q": call.cu_seqlens_q, "cu_seqlens_k": call.cu_seqlens_k}
    elif parts.documents is not None:
        fields["mask"], given["doc"] = "documents", parts.documents
    elif parts.keep is not None:
        fields["mask"], given["keep"] = "keep", parts.keep[:, :keys].expand(len(call.q), -1)


def _seen_by_tensor(
    mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, fields: _Given, given: _Given
) -> None:
    mask = mask[..., : k.shape[1]]
    if mask.shape[1] == 1 and (mask.shape[2] == 1 or mask.stride(2) == 0):
        fields["mask"], given["keep"] = "keep", mask[:, 0, 0].expand(len(q), -1)
    else:
        fields["mask"], given["seen"] = "seen", _expanded(mask, q, k)


def _biased(
    bias: torch.Tensor, q: torch.Tensor, k: torch.Tensor, fields: _Given, given: _Given
) -> None:
    bias = bias[..., : k.shape[1]]
    if bias.dtype not in DTYPE_NAMES or (bias.dtype is torch.float64 and q.dtype != bias.dtype):
        bias = bias.float()
    fields["bias_dtype"] = DTYPE_NAMES[bias.dtype]
    fields["bias_grad"] = bias.requires_grad and torch.is_grad_enabled()
    if bias.shape[0] == 1 or bias.stride(0) == 0:
        fields["bias"], given["bias"] = "shared", _expanded(bias[:1], q[:1], k)[0]
    else:
        fields["bias"], given["bias"] = "batched", _expanded(bias, q, k)


def _expanded(tensor: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """``tensor`` as (batch, num_heads, queries, keys), without a copy."""
    return tensor.expand(len(q), q.shape[2], q.shape[1], k.shape[1])


def _run(
    call: Arguments,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    fields: _Given,
    given: _Given,
) -> torch.Tensor:
    head_dim, head_dim_v = q.shape[3], v.shape[3]
    choice = Choice(
        padded_head_dim("q", head_dim),
        padded_head_dim("v", head_dim_v),
        checked_dtype(q),
        dropout_bits=dropout_bits(call.dropout_p),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        **fields,
    )
    scale = 1 / math.sqrt(head_dim) if call.softmax_scale is None else call.softmax_scale
    if choice.varlen:
        q, k, v = q[0], k[0], v[0]
    if torch.compiler.is_compiling():
        rest = (scale, call.dropout_p, given)
        found, _, _ = call_variant(presets_of(choice), q, k, v, *rest, mark=mark_of(choice))
        return found.unsqueeze(0) if choice.varlen else found
    kernel = find_kernel(choice, str(q.device), torch.is_grad_enabled())
    q, k, v = pad_heads(kernel.variant, q, k, v)
    out = kernel(q, k, v, softmax_scale=scale, dropout_p=call.dropout_p, **given)
    assert isinstance(out, torch.Tensor)
    out = out.unsqueeze(0) if choice.varlen else out
    return out if choice.head_dim_v == head_dim_v else out[..., :head_dim_v].contiguous()
