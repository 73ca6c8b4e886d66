"""Sizes of a call -> Launch: what calls of these sizes allocate and run, found once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch

from .arguments import lse_dtype
from .loader import CompiledPass

MAX_LAUNCHES = 4096
_MAX_UNREAD = 1 << 16  # elements; 256 KB a device


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """What calls of the same sizes on the same device share.

    Attributes:
        function: the compiled pass.
        results: a tensor like each of its results: out and lse, or dq, dk and dv.
        workspace: one like its workspace; the very one where it needs none.
        allocates: whether it needs one.
        unread: where lse goes when nobody asks for it; None where it is allocated as ever.
    """

    function: Callable[..., Any]
    results: tuple[torch.Tensor, ...]
    workspace: torch.Tensor
    allocates: bool
    unread: torch.Tensor | None = None


def sizes_of(
    q: torch.Tensor, k: torch.Tensor, extras: Sequence[torch.Tensor]
) -> tuple[int, int, int, int, int]:
    """(batch or sequences, num_heads, num_heads_kv, queries, keys) of a call."""
    shape = q.shape
    if len(shape) == 4:
        batch, seqlen_q, num_heads, _ = shape
        _, seqlen_k, num_heads_kv, _ = k.shape
        return batch, num_heads, num_heads_kv, seqlen_q, seqlen_k
    total_q, num_heads, _ = shape
    total_k, num_heads_kv, _ = k.shape
    return len(extras[0]) - 1, num_heads, num_heads_kv, total_q, total_k


def forward_results(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns of out and lse."""
    *lead, rows, num_heads, _ = q.shape
    dtype, device = q.dtype, q.device
    out = pattern((*lead, rows, num_heads, v.shape[-1]), dtype, device)
    return out, pattern((*lead, num_heads, rows), lse_dtype(dtype), device)


def backward_results(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Patterns of dq, dk and dv."""
    dq, dk, dv = (pattern(t.shape, t.dtype, t.device) for t in (q, k, v))
    return dq, dk, dv


def launch_of(
    compiled: CompiledPass,
    sizes: tuple[int, int, int, int, int],
    results: tuple[torch.Tensor, ...],
    switches_device: bool,
) -> Launch:
    """The launch of a pass for calls of ``sizes`` that give tensors like ``results``.

    Args:
        compiled: the pass.
        sizes: as `sizes_of` has them.
        results: a pattern of each result.
        switches_device: whether the results' device may not be the current one.
    """
    size, device = compiled.workspace(*sizes), results[0].device
    workspace = pattern((size,), torch.uint8, device) if size else _nothing(device)
    function = compiled.function
    if switches_device and device.type == "cuda":
        function = partial(_on_device, device, function)
    unread = _unread(results[1]) if len(results) == 2 else None
    return Launch(function, results, workspace, size > 0, unread)


def _on_device(device: torch.device, function: Callable[..., Any], *args: Any) -> None:
    """Call with ``device`` current: a kernel is launched on the current device's context."""
    if device.index == torch.cuda.current_device():
        function(*args)
    else:
        with torch.cuda.device(device):
            function(*args)


@lru_cache(maxsize=4096)
def pattern(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of one element in memory; its like takes half of the time of torch.empty."""
    return _element(dtype, device).expand(shape)


@cache
def _element(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=dtype, device=device)


def _unread(lse: torch.Tensor) -> torch.Tensor | None:
    """Memory of a small ``lse`` on a GPU that any number of calls may write, and none reads.

    An allocation is a tenth of the host's time for a small call. On the CPU it is half of that, and
    threads that write the same memory would be a race in the language's eyes.
    """
    if not lse.is_cuda or lse.numel() > _MAX_UNREAD:
        return None
    return _written_only(lse.dtype, lse.device)[: lse.numel()].view(lse.shape)


@cache
def _written_only(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(_MAX_UNREAD, dtype=dtype, device=device)


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    """A workspace of no bytes: most forwards need none, and an allocation takes a microsecond."""
    return torch.empty(0, dtype=torch.uint8, device=device)
