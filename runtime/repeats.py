"""A plain call like an earlier one -> its result, without the checks that the earlier one had.

Most calls have the sizes of one before, and many take the device less time than checks take the
host. What is looked up here is little, the compiled pass checks again what it is given, and where
anything is unusual or refused there is no result: the caller then goes the long way, which tells
what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from .ops import PLAIN_TENSORS, OneDerivative, run_backward

if TYPE_CHECKING:
    from .passes import PassRunner

_LARGEST_SCALE = 1e30  # far from what fp32 can't hold
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_on = torch._C._is_any_autocast_enabled
_transforms_are_active = torch._C._are_functorch_transforms_active


def repeated(
    runner: PassRunner,
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: Any,
    dropout_p: Any,
    heads_first: bool = False,
) -> torch.Tensor | None:
    """``out`` of a call with nothing but these arguments, of which the first six may be anything.

    With ``heads_first`` q, k, v and out are (batch, heads, seqlen, head_dim).

    None where no earlier call was like it, and of a variant whose calls take more, which has no
    launches by these three. Not to be called in a trace.
    """
    if (
        type(q) not in PLAIN_TENSORS
        or type(k) not in PLAIN_TENSORS
        or type(v) not in PLAIN_TENSORS
        or type(dropout_p) is not float
        or dropout_p != 0.0
        or _is_autocast_on()
        or _transforms_are_active()
    ):
        return None
    if softmax_scale is None:
        softmax_scale = runner.default_scale
    elif type(softmax_scale) is not float or not 0.0 < softmax_scale < _LARGEST_SCALE:
        return None
    try:
        if _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            out: torch.Tensor = _apply(q, k, v, (runner, softmax_scale, heads_first))
            return out
        if heads_first:
            q, k, v = _swapped(q, k, v)
        out, _ = _run(runner, q, k, v, softmax_scale, reads_lse=False)
        return out.transpose(1, 2) if heads_first else out
    except _RefusedError:
        return None


def _swapped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise _RefusedError
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class _RefusedError(Exception):
    """The long way will tell why. What others raise passes: checkpoints stop by an exception."""


def _run(
    runner: PassRunner,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float,
    reads_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        launch = runner.forwards[q.shape, k.shape, q.device]
        lse = None if reads_lse else launch.unread
        return runner.forward_of(launch, lse, q, k, v, None, softmax_scale, 0)
    except Exception:
        raise _RefusedError from None


_Call: TypeAlias = "tuple[PassRunner, float, bool]"


class _Repeated(torch.autograd.Function):
    """``out`` alone, of q, k and v alone: each further argument and result takes its time."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: _Call
    ) -> torch.Tensor:
        runner, softmax_scale, heads_first = call
        seq_q, seq_k, seq_v = _swapped(q, k, v) if heads_first else (q, k, v)
        out, lse = _run(runner, seq_q, seq_k, seq_v, softmax_scale, reads_lse=True)
        if heads_first:
            out = out.transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = call
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        runner, softmax_scale, heads_first = ctx.call
        call = (runner, softmax_scale, 0, (), heads_first)
        tensors = (dout, *ctx.saved_tensors, None, None)
        if _is_grad_enabled():
            dq, dk, dv = OneDerivative.apply(call, *tensors)  # type: ignore[no-untyped-call]
        elif heads_first:
            dq, dk, dv = run_backward(call, *tensors)
        else:
            dq, dk, dv = runner.run_backward(*tensors, softmax_scale, 0)
        return dq, dk, dv, None


# Function.apply looks for functorch's transforms, which are none here, in a microsecond or two.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Repeated).apply
