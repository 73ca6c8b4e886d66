"""Compiled passes -> differentiable calls, in eager mode and under torch.compile.

Eager calls go through an autograd.Function. Traced calls (torch.compile, fake tensors) go through
the dispatcher operators of `operators`, which cost more per call but can be put in a graph. Both
end in the same two methods of a Runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch.autograd.function import FunctionCtx

from ..generator.errors import FlashgenError

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class Runner(Protocol):
    """What an operator calls: checked arguments in, results out, no autograd."""

    @property
    def handle(self) -> str:
        """The string that stands for it in a graph."""

    @property
    def gradient_slots(self) -> tuple[int, ...]:
        """Places among extras of the tensors that have a gradient."""

    @property
    def integral(self) -> tuple[bool, ...]:
        """Whether each of a call's numbers is an int."""

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
        extras: Sequence[torch.Tensor] = (),
        numbers: Sequence[int | float] = (),
    ) -> tuple[torch.Tensor, ...]:
        """(dq, dk, dv) and the gradients of the extras in gradient_slots."""


_runners: dict[str, Runner] = {}


def register(runner: Runner) -> None:
    """Make ``runner`` the one that its handle stands for."""
    _runners[runner.handle] = runner


def attend(
    runner: Runner,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rng_state: torch.Tensor | None,
    softmax_scale: float,
    dropout_threshold: int,
    extras: tuple[torch.Tensor, ...] = (),
    numbers: tuple[int | float, ...] = (),
    heads_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse), both differentiable with respect to q, k, v and extras that have a gradient.

    With ``heads_first`` q, k, v and out are (batch, heads, seqlen, head_dim).
    """
    scalars = (softmax_scale, dropout_threshold)
    if torch.compiler.is_compiling() or type(q) not in PLAIN_TENSORS:
        return traced(runner.handle, q, k, v, rng_state, *scalars, extras, numbers, heads_first)
    if torch.is_grad_enabled() and (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (extras and any(extra.requires_grad for extra in extras))
    ):
        call = (runner, softmax_scale, dropout_threshold, numbers, heads_first)
        out, lse = _Attention.apply(q, k, v, rng_state, call, *extras)  # type: ignore[no-untyped-call]
        return out, lse
    rest = (rng_state, *scalars, extras, numbers)
    return _forward(runner.run_forward, heads_first, q, k, v, *rest)


def traced(
    handle: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rng_state: torch.Tensor | None,
    softmax_scale: float,
    dropout_threshold: int,
    extras: tuple[torch.Tensor, ...] = (),
    numbers: tuple[int | float, ...] = (),
    heads_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend` by an operator; ``handle`` is a constant to torch.compile."""
    from . import operators  # here: registering them imports most of torch.compile

    rest = (rng_state, handle, softmax_scale, dropout_threshold, extras, numbers)
    return _forward(operators.forward, heads_first, q, k, v, *rest)


def _forward(
    function: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    heads_first: bool,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of ``function``, which wants the sequence before the heads, and gives it so."""
    if not heads_first:
        return function(q, k, v, *rest)
    out, lse = function(*_swapped(q, k, v), *rest)
    return out.transpose(1, 2), lse


def _swapped(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """``tensors`` with heads and sequence in each other's place."""
    return [tensor.transpose(1, 2) for tensor in tensors]


_Call: TypeAlias = tuple[Runner, float, int, tuple[int | float, ...], bool]


class _Attention(torch.autograd.Function):
    """The eager path. Saves q, k, v, out, lse, rng_state and extras, nothing else.

    It transposes by itself, as each view outside would be a node of the graph.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rng_state: torch.Tensor | None,
        call: _Call,
        *extras: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        runner, softmax_scale, dropout_threshold, numbers, heads_first = call
        rest = (rng_state, softmax_scale, dropout_threshold, extras, numbers)
        out, lse = _forward(runner.run_forward, heads_first, q, k, v, *rest)
        ctx.save_for_backward(q, k, v, out, lse, rng_state, *extras)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors
        count = len(saved) - 6
        if dout is None:
            if dlse is None:
                return (None,) * (5 + count)
            dout = torch.zeros_like(saved[3])
        tensors = (dout, *saved[:5], dlse, *saved[5:])
        if torch.is_grad_enabled():
            grads = OneDerivative.apply(ctx.call, *tensors)  # type: ignore[no-untyped-call]
        else:
            grads = run_backward(ctx.call, *tensors)
        if not count:
            return (*grads, None, None)
        return (*grads[:3], None, None, *placed(ctx.call[0], grads[3:], count))


def run_backward(call: _Call, *tensors: Any) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv, gradients of extras) of dout, q, k, v, out, lse, dlse, rng_state, extras."""
    runner, softmax_scale, dropout_threshold, numbers, heads_first = call
    dout, q, k, v, out, lse, dlse, rng_state, *extras = tensors
    if heads_first:
        dout, q, k, v, out = _swapped(dout, q, k, v, out)
    dq, dk, dv, *more = runner.run_backward(
        dout, q, k, v, out, lse, dlse, rng_state, softmax_scale, dropout_threshold, extras, numbers
    )
    if heads_first:
        dq, dk, dv = _swapped(dq, dk, dv)
    return dq, dk, dv, *more


def placed(runner: Runner, grads: Sequence[torch.Tensor], count: int) -> list[torch.Tensor | None]:
    """``grads`` at the places of their tensors among ``count`` extras."""
    result: list[torch.Tensor | None] = [None] * count
    for slot, grad in zip(runner.gradient_slots, grads, strict=True):
        result[slot] = grad
    return result


class OneDerivative(torch.autograd.Function):
    """The backward pass under create_graph=True: what depends on it has no gradient."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: FunctionCtx, call: _Call, *tensors: torch.Tensor | None
    ) -> tuple[torch.Tensor, ...]:
        return run_backward(call, *tensors)

    @staticmethod
    def backward(ctx: FunctionCtx, *_: torch.Tensor) -> tuple[None, ...]:  # noqa: D102
        raise FlashgenError(
            "attention: expected a first derivative, got a second one: the backward kernels have "
            "no derivative of their own. Use torch's math attention where you need it."
        )


def runner_of(handle: str, device: torch.device) -> Runner:
    """The runner of ``handle``; made for ``device`` where a graph of another process names it.

    Its passes are built and loaded when they first run: a graph may need the forward alone.
    """
    if handle not in _runners:
        from .calls import make_kernel

        key, _, family = handle.partition("@")
        make_kernel(key, device, (), family or None)
    return _runners[handle]
