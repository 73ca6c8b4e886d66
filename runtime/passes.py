"""Checked tensors and numbers -> results of a variant's compiled passes, on any device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import torch

from ..generator.arch import Target, target_for_family
from ..generator.spec import Spec
from ..generator.variant import Variant
from . import arguments
from .captures import signature_of
from .devices import target_of
from .loader import CompiledPass, load_passes
from .tuning.store import request_for


class PassRunner:
    """The passes of a variant: loaded once for each device, and run with no check or autograd.

    Attributes:
        variant: the function.
        key: its name.
        target: what the device it was loaded for runs.
        handle: the string that stands for it in a graph.
        gradient_slots: places among a call's extra tensors of those that have a gradient.
        integral: whether each of a call's numbers is an int.
    """

    def __init__(
        self,
        variant: Variant,
        device: torch.device,
        spec: Spec | None,
        family: str | None,
        passes: Sequence[str],
    ) -> None:
        """Load ``passes`` for ``device``, with the pins of ``spec``."""
        self.variant = variant
        self.key = variant.key
        self.target: Target = target_for_family(target_of(device), family)
        self.handle = self.key if family is None else f"{self.key}@{family}"
        self._signature = signature_of(variant)
        self.gradient_slots = self._signature.gradient_slots
        self.integral = tuple(param.type == "int" for param in self._signature.program.params)
        self._takes_more = bool(self._signature.tensors or self._signature.params)
        self._spec = spec
        self._family = family
        self._passes: dict[tuple[torch.device, str], CompiledPass] = {}
        self._switches_device = False
        self._lock = threading.Lock()
        self._load(_indexed(device), passes)

    def run_forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rng_state: torch.Tensor | None,
        softmax_scale: float,
        dropout_threshold: int,
        extras: Sequence[torch.Tensor] = (),
        numbers: Sequence[int | float] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of checked arguments: the operator's implementation."""
        device, dtype, usable = q.device, q.dtype, arguments.usable
        sizes = _sizes(q, k, extras)
        batch, num_heads, _, rows, columns = sizes
        if len(q.shape) == 4:
            out = _empty((batch, rows, num_heads, v.shape[3]), dtype, device)
            lse = _empty((batch, num_heads, rows), arguments.lse_dtype(dtype), device)
        else:
            out = _empty((rows, num_heads, v.shape[2]), dtype, device)
            lse = _empty((num_heads, rows), arguments.lse_dtype(dtype), device)
        if columns == 0 or out.numel() == 0:
            return out.zero_(), self._signature.lse_without_keys(lse, extras)
        if softmax_scale <= 0:
            q, softmax_scale, _ = arguments.positive_scale(q, softmax_scale)
        compiled = self._passes.get((device, "forward")) or self._compiled(device, "forward")
        tensors = (out, lse, usable(q), usable(k), usable(v), rng_state)
        workspace = _workspace(compiled, sizes, device)
        scalars = (softmax_scale, dropout_threshold, *extras, *numbers)
        if self._switches_device:
            _launch(compiled, device, *tensors, workspace, *scalars)
        else:
            compiled.function(*tensors, workspace, *scalars)
        return out, lse

    def run_backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        dlse: torch.Tensor | None,
        rng_state: torch.Tensor | None,
        softmax_scale: float,
        dropout_threshold: int,
        extras: Sequence[torch.Tensor] = (),
        numbers: Sequence[int | float] = (),
    ) -> tuple[torch.Tensor, ...]:
        """(dq, dk, dv, gradients of extras) of checked arguments: the operator's implementation."""
        device, dtype, slots, usable = q.device, q.dtype, self.gradient_slots, arguments.usable
        dq, dk = _empty(q.shape, dtype, device), _empty(k.shape, dtype, device)
        dv = _empty(v.shape, dtype, device)
        more = [_empty(extras[i].shape, lse.dtype, device) for i in slots] if slots else []
        sizes = _sizes(q, k, extras)
        if sizes[4] == 0 or dout.numel() == 0:
            self._signature.gradients_without_keys(more, dlse, extras)
            dq, dk, dv = dq.zero_(), dk.zero_(), dv.zero_()
        else:
            sign = 1
            if softmax_scale <= 0:
                q, softmax_scale, sign = arguments.positive_scale(q, softmax_scale)
            compiled = self._passes.get((device, "backward")) or self._compiled(device, "backward")
            stats = (lse.contiguous(), None if dlse is None else dlse.contiguous(), rng_state)
            inputs = (usable(dout), usable(q), usable(k), usable(v), usable(out), *stats)
            workspace = _workspace(compiled, sizes, device)
            scalars = (softmax_scale, dropout_threshold, *extras, *numbers, *more)
            if self._switches_device:
                _launch(compiled, device, dq, dk, dv, *inputs, workspace, *scalars)
            else:
                compiled.function(dq, dk, dv, *inputs, workspace, *scalars)
            dq = dq if sign == 1 else dq.mul_(sign)
        if not more:
            return dq, dk, dv
        return dq, dk, dv, *(g.to(extras[i].dtype) for g, i in zip(more, slots, strict=True))

    def _compiled(self, device: torch.device, pass_name: str) -> CompiledPass:
        compiled = self._passes.get((device, pass_name))
        if compiled is None:
            compiled = self._load(device, (pass_name,))[pass_name]
        return compiled

    def _load(self, device: torch.device, passes: Sequence[str]) -> dict[str, CompiledPass]:
        """Load ``passes`` for ``device``; those that aren't built yet are built together."""
        with self._lock:
            if device.type == "cuda":  # a single GPU is always current, and asking takes a while
                self._switches_device = torch.cuda.device_count() > 1
            requests = [
                request_for(self.variant, name, device, self._family, self._spec) for name in passes
            ]
            loaded = dict(zip(passes, load_passes(requests, device=device), strict=True))
            for name, compiled in loaded.items():
                self._passes[device, name] = compiled
            return loaded


def _indexed(device: torch.device) -> torch.device:
    """``device`` as tensors spell it: with an index on CUDA."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Every result and workspace is allocated here, so that a test can poison them."""
    return torch.empty_like(_pattern(shape, dtype, device))


@lru_cache(maxsize=4096)
def _pattern(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of one element in memory; its like takes half of the time of torch.empty."""
    return _element(dtype, device).expand(shape)


@cache
def _element(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=dtype, device=device)


def _sizes(
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


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    """A workspace of no bytes: most forwards need none, and an allocation takes a microsecond."""
    return torch.empty(0, dtype=torch.uint8, device=device)


def _workspace(
    compiled: CompiledPass, sizes: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    size = compiled.workspace(*sizes)
    return _empty((size,), torch.uint8, device) if size else _nothing(device)


def _launch(compiled: CompiledPass, device: torch.device, *args: Any) -> None:
    """Call with ``device`` current: a kernel is launched on the current device's context."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            compiled.function(*args)
    else:
        compiled.function(*args)
