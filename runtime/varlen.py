"""cu_seqlens -> checked offsets of packed sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..generator.errors import ArgumentError

NAMES = ("cu_seqlens_q", "cu_seqlens_k")
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether values may be looked at: on the CPU, where that is no sync, and not in a trace."""
    return (
        tensor.device.type == "cpu"
        and type(tensor) in _PLAIN_TENSORS
        and not torch.compiler.is_compiling()
    )


def check(
    key: str, q: torch.Tensor, k: torch.Tensor, arguments: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cu_seqlens_q, cu_seqlens_k) of a call: sequence i is rows cu[i] to cu[i + 1].

    Rows behind the last sequence belong to none. On a GPU nothing here waits for it; there the
    kernels keep to the tensors whatever the values.

    Args:
        key: of the variant, for messages.
        q: (total_q, num_heads, head_dim).
        k: (total_k, num_heads_kv, head_dim).
        arguments: those of the call.

    Raises:
        ArgumentError: when one is no 1-D tensor of int32 or int64 on the device of q, they differ
            in length, or (on the CPU) their values are no offsets.
    """
    found = []
    for name, rows in zip(NAMES, (q, k), strict=True):
        where, offsets = f"{key}: {name}", arguments[name]
        if not isinstance(offsets, torch.Tensor):
            raise ArgumentError(f"{where}: expected a torch.Tensor, got {type(offsets).__name__}.")
        if offsets.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(
                f"{where}: expected dtype torch.int32 or torch.int64, got {offsets.dtype}."
            )
        if offsets.dim() != 1 or len(offsets) == 0:
            raise ArgumentError(
                f"{where}: expected shape (sequences + 1,), got {tuple(offsets.shape)}. It starts "
                "at 0 and adds up the lengths."
            )
        if offsets.device != q.device:
            raise ArgumentError(
                f"{where}: expected device {q.device} as q, got {offsets.device}. Move it."
            )
        if has_values(offsets):
            _check_values(where, offsets, len(rows))
        found.append(offsets.contiguous())
    if len(found[0]) != len(found[1]):
        raise ArgumentError(
            f"{key}: cu_seqlens_k: expected the length {len(found[0])} of cu_seqlens_q, got "
            f"{len(found[1])}. Both describe the same sequences."
        )
    return found[0], found[1]


def _check_values(where: str, offsets: torch.Tensor, total: int) -> None:
    if offsets[0] != 0:
        raise ArgumentError(f"{where}: expected it to start at 0, got {offsets[0].item()}.")
    falls = (offsets[1:] < offsets[:-1]).nonzero()
    if len(falls):
        at = int(falls[0])
        raise ArgumentError(
            f"{where}: expected offsets that never decrease, got {offsets[at].item()} and then "
            f"{offsets[at + 1].item()} at {at + 1}. They add up the lengths."
        )
    if offsets[-1] > total:
        raise ArgumentError(
            f"{where}: expected a last offset of at most {total}, the number of rows, got "
            f"{offsets[-1].item()}."
        )
