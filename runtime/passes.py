"""Checked tensors and numbers -> results of a variant's compiled passes, on any device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ..generator.arch import Target, target_for_family
from ..generator.spec import Spec
from ..generator.variant import Variant
from . import arguments
from .arguments import usable
from .captures import Signature, signature_of, takes_more
from .devices import target_of
from .launch import (
    MAX_LAUNCHES,
    Launch,
    backward_results,
    forward_results,
    launch_of,
    pattern,
    sizes_of,
)
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
        default_scale: the softmax_scale of calls that give none.
        forwards: launches so far; of dense layouts by (q.shape, k.shape, q.device).
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
        self._takes_more = takes_more(variant)
        self._known_signature = signature_of(variant) if self._takes_more else None
        self.gradient_slots: tuple[int, ...] = ()
        self.integral: tuple[bool, ...] = ()
        if self._known_signature is not None:
            self.gradient_slots = self._known_signature.gradient_slots
            params = self._known_signature.program.params
            self.integral = tuple(param.type == "int" for param in params)
        self.default_scale = arguments.scale_of(variant, None)
        self._packed = variant.layout == "varlen"
        self._spec = spec
        self._family = family
        self._passes: dict[tuple[torch.device, str], CompiledPass] = {}
        self.forwards: dict[tuple[Any, ...], Launch] = {}
        self._backwards: dict[tuple[Any, ...], Launch] = {}
        self._switches_device = False
        self._lock = threading.Lock()
        self._load(_indexed(device), passes)

    @property
    def _signature(self) -> Signature:
        """How calls are made; its program takes a while, and most variants take nothing more."""
        return self._known_signature or signature_of(self.variant)

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
        launch = self.forwards.get(self._sizes_key(q, k, extras))
        if launch is None or softmax_scale <= 0:
            results = forward_results(q, v)
            if sizes_of(q, k, extras)[4] == 0 or results[0].numel() == 0:
                out, lse = map(_like, results)
                return out.zero_(), self._signature.lse_without_keys(lse, extras)
            launch = self._launch("forward", q, k, extras, results)
            q, softmax_scale, _ = arguments.positive_scale(q, softmax_scale)
        scalars = (softmax_scale, dropout_threshold, *extras, *numbers)
        return self.forward_of(launch, None, q, k, v, rng_state, *scalars)

    def forward_of(
        self,
        launch: Launch,
        lse: torch.Tensor | None,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rng_state: torch.Tensor | None,
        *scalars: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of arguments that suit ``launch``; ``lse`` is allocated for None."""
        like_out, like_lse = launch.results
        out = _like(like_out)
        if lse is None:
            lse = _like(like_lse)
        workspace = _like(launch.workspace) if launch.allocates else launch.workspace
        q = q if q.is_contiguous() else usable(q)
        k = k if k.is_contiguous() else usable(k)
        v = v if v.is_contiguous() else usable(v)
        try:
            launch.function(out, lse, q, k, v, rng_state, workspace, *scalars)
        except ValueError:  # rows that aren't aligned are rare, and told before they are read
            inputs = (usable(q), usable(k), usable(v))
            launch.function(out, lse, *inputs, rng_state, workspace, *scalars)
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
        slots = self.gradient_slots
        more = [_empty(extras[i].shape, lse.dtype, q.device) for i in slots] if slots else ()
        launch = self._backwards.get(self._sizes_key(q, k, extras))
        sign = 1
        if launch is None or softmax_scale <= 0:
            results = backward_results(q, k, v)
            if sizes_of(q, k, extras)[4] == 0 or dout.numel() == 0:
                self._signature.gradients_without_keys(more, dlse, extras)
                return *(_like(result).zero_() for result in results), *self._given(more, extras)
            launch = self._launch("backward", q, k, extras, results)
            q, softmax_scale, sign = arguments.positive_scale(q, softmax_scale)
        inputs = [t if t.is_contiguous() else usable(t) for t in (dout, q, k, v, out)]
        stats = (lse.contiguous(), None if dlse is None else dlse.contiguous(), rng_state)
        scalars = (softmax_scale, dropout_threshold, *extras, *numbers, *more)
        like_dq, like_dk, like_dv = launch.results
        dq, dk, dv = _like(like_dq), _like(like_dk), _like(like_dv)
        workspace = _like(launch.workspace) if launch.allocates else launch.workspace
        try:
            launch.function(dq, dk, dv, *inputs, *stats, workspace, *scalars)
        except ValueError:  # as in the forward
            launch.function(dq, dk, dv, *map(usable, inputs), *stats, workspace, *scalars)
        dq = dq if sign == 1 else dq.mul_(sign)
        return (dq, dk, dv, *self._given(more, extras)) if more else (dq, dk, dv)

    def _given(
        self, gradients: Sequence[torch.Tensor], extras: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """``gradients`` in the dtypes of the tensors that they belong to."""
        slots = self.gradient_slots
        return [g.to(extras[i].dtype) for g, i in zip(gradients, slots, strict=True)]

    def _sizes_key(
        self, q: torch.Tensor, k: torch.Tensor, extras: Sequence[torch.Tensor]
    ) -> tuple[Any, ...]:
        """What of a call's tensors decides its launch; dtypes and head_dim_v are the variant's."""
        if self._packed:
            return q.shape, k.shape, q.device, extras[0].shape
        return q.shape, k.shape, q.device

    def _launch(
        self,
        pass_name: str,
        q: torch.Tensor,
        k: torch.Tensor,
        extras: Sequence[torch.Tensor],
        results: tuple[torch.Tensor, ...],
    ) -> Launch:
        """The launch of such calls, remembered; the pass is built and loaded where it isn't yet."""
        compiled = self._compiled(q.device, pass_name)
        launch = launch_of(compiled, sizes_of(q, k, extras), results, self._switches_device)
        known = self.forwards if pass_name == "forward" else self._backwards
        if len(known) >= MAX_LAUNCHES:
            known.clear()
        known[self._sizes_key(q, k, extras)] = launch
        return launch

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
    return _like(pattern(shape, dtype, device))


_like = torch.empty_like
"""Every result and workspace is allocated by it, so that a test can poison them."""
