"""Compiled passes -> differentiable torch operators, in eager mode and under torch.compile.

Eager calls go through an autograd.Function. Traced calls (torch.compile, fake tensors) go through
one dispatcher operator per pass, which costs more per call but can be put in a graph. Both end in
the same two methods of a Runner.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx

from ..generator.errors import FlashgenError
from .arguments import lse_dtype

NAMESPACE = "flashgen"
_ARGUMENTS = "str kernel, float softmax_scale, int dropout_threshold"
FORWARD_SCHEMA = (
    f"forward(Tensor q, Tensor k, Tensor v, Tensor? rng_state, {_ARGUMENTS}) "
    "-> (Tensor out, Tensor lse)"
)
BACKWARD_SCHEMA = (
    "backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, "
    f"Tensor? rng_state, {_ARGUMENTS}) -> (Tensor dq, Tensor dk, Tensor dv)"
)
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Runner(Protocol):
    """What an operator calls: checked arguments in, results out, no autograd."""

    @property
    def handle(self) -> str:
        """The string that stands for it in a graph."""

    def run_forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rng_state: torch.Tensor | None,
        softmax_scale: float,
        dropout_threshold: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse)."""

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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(dq, dk, dv)."""


_runners: dict[str, Runner] = {}


def register(runner: Runner) -> None:
    """Make ``runner`` the one that its handle stands for, and the operators exist."""
    _library()
    _runners[runner.handle] = runner


def attend(
    runner: Runner | str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rng_state: torch.Tensor | None,
    softmax_scale: float,
    dropout_threshold: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse), both differentiable with respect to q, k and v.

    ``runner`` may be a handle, which torch.compile takes as a constant.
    """
    scalars = (softmax_scale, dropout_threshold)
    if torch.compiler.is_compiling() or type(q) not in _PLAIN_TENSORS:
        handle = runner if isinstance(runner, str) else runner.handle
        result = torch.ops.flashgen.forward(q, k, v, rng_state, handle, *scalars)
        return result[0], result[1]
    runner = _runner(runner) if isinstance(runner, str) else runner
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _Attention.apply(q, k, v, rng_state, runner, *scalars)  # type: ignore[no-untyped-call]
        return out, lse
    return runner.run_forward(q, k, v, rng_state, *scalars)


class _Attention(torch.autograd.Function):
    """The eager path. Saves q, k, v, out, lse and rng_state, nothing else."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rng_state: torch.Tensor | None,
        runner: Runner,
        softmax_scale: float,
        dropout_threshold: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = runner.run_forward(q, k, v, rng_state, softmax_scale, dropout_threshold)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.call = (runner, softmax_scale, dropout_threshold)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if dout is None and dlse is None:
            return (None,) * 7
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        tensors = (dout, q, k, v, out, lse, dlse, rng_state)
        if torch.is_grad_enabled():
            grads = _Gradients.apply(*ctx.call, *tensors)  # type: ignore[no-untyped-call]
        else:
            runner, softmax_scale, dropout_threshold = ctx.call
            grads = runner.run_backward(*tensors, softmax_scale, dropout_threshold)
        return (*grads, None, None, None, None)


class _Gradients(torch.autograd.Function):
    """The backward pass under create_graph=True: what depends on it has no gradient."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        runner: Any,
        softmax_scale: float,
        dropout_threshold: int,
        *tensors: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        grads = runner.run_backward(*tensors, softmax_scale, dropout_threshold)
        return grads

    @staticmethod
    def backward(ctx: FunctionCtx, *_: torch.Tensor) -> tuple[None, ...]:
        raise FlashgenError(
            "attention: expected a first derivative, got a second one: the backward kernels have "
            "no derivative of their own. Use torch's math attention where you need it."
        )


def _runner(handle: str) -> Runner:
    """The runner of ``handle``; loaded where a graph of another process names it."""
    if handle not in _runners:
        from .kernel import load

        key, _, family = handle.partition("@")
        load(key, family=family or None)
    return _runners[handle]


@cache
def _library() -> torch.library.Library:
    """The operators ``flashgen::forward`` and ``flashgen::backward``, defined on first use."""
    library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
    library.define(FORWARD_SCHEMA)  # type: ignore[no-untyped-call]
    library.define(BACKWARD_SCHEMA)  # type: ignore[no-untyped-call]
    for device_key in ("CPU", "CUDA"):
        library.impl("forward", _forward, device_key)  # type: ignore[no-untyped-call]
        library.impl("backward", _backward, device_key)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::forward", _fake_forward, lib=library)
    torch.library.register_fake(f"{NAMESPACE}::backward", _fake_backward, lib=library)
    torch.library.register_autograd(
        f"{NAMESPACE}::forward", _traced_backward, setup_context=_save, lib=library
    )
    return library


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rng_state: torch.Tensor | None,
    kernel: str,
    softmax_scale: float,
    dropout_threshold: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    runner = _runner(kernel)
    return runner.run_forward(q, k, v, rng_state, softmax_scale, dropout_threshold)


def _backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dlse: torch.Tensor | None,
    rng_state: torch.Tensor | None,
    kernel: str,
    softmax_scale: float,
    dropout_threshold: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tensors = (dout, q, k, v, out, lse, dlse, rng_state)
    return _runner(kernel).run_backward(*tensors, softmax_scale, dropout_threshold)


def _fake_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, seqlen_q, num_heads, _head_dim = q.shape
    out = q.new_empty((batch, seqlen_q, num_heads, v.shape[3]))
    return out, q.new_empty((batch, num_heads, seqlen_q), dtype=lse_dtype(q.dtype))


def _fake_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, rng_state, *ctx.scalars = inputs
    ctx.save_for_backward(q, k, v, *output, rng_state)
    ctx.set_materialize_grads(False)


def _traced_backward(
    ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    q, k, v, out, lse, rng_state = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    grads = torch.ops.flashgen.backward(dout, q, k, v, out, lse, dlse, rng_state, *ctx.scalars)
    return (*grads, None, None, None, None)
