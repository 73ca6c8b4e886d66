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

from .launch import Launch
from .ops import PLAIN_TENSORS, OneDerivative

if TYPE_CHECKING:
    from .passes import PassRunner

_LARGEST_SCALE = 1e30  # far from what fp32 can't hold
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_on = torch._C._is_any_autocast_enabled
_transforms_are_active = torch._C._are_functorch_transforms_active


def repeated(
    runner: PassRunner, q: Any, k: Any, v: Any, softmax_scale: Any, dropout_p: Any
) -> torch.Tensor | None:
    """``out`` of a call with nothing but these arguments, which may be anything.

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
    launch = runner.forwards.get((q.shape, k.shape, q.device))
    if launch is None:
        return None
    if softmax_scale is None:
        softmax_scale = runner.default_scale
    elif type(softmax_scale) is not float or not 0.0 < softmax_scale < _LARGEST_SCALE:
        return None
    try:
        if _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            out: torch.Tensor = _apply(q, k, v, (runner, launch, softmax_scale))
            return out
        return runner.forward_of(launch, launch.unread, q, k, v, None, softmax_scale, 0)[0]
    except Exception:  # of whatever kind: the long way meets it again
        return None


_Call: TypeAlias = "tuple[PassRunner, Launch, float]"


class _Repeated(torch.autograd.Function):
    """``out`` alone, of q, k and v alone: each further argument and result takes its time."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: _Call
    ) -> torch.Tensor:
        runner, launch, softmax_scale = call
        out, lse = runner.forward_of(launch, None, q, k, v, None, softmax_scale, 0)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = call
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        runner, _, softmax_scale = ctx.call
        if _is_grad_enabled():
            call = (runner, softmax_scale, 0, (), False)
            tensors = (dout, *ctx.saved_tensors, None, None)
            dq, dk, dv = OneDerivative.apply(call, *tensors)  # type: ignore[no-untyped-call]
        else:
            dq, dk, dv = runner.run_backward(dout, *ctx.saved_tensors, None, None, softmax_scale, 0)
        return dq, dk, dv, None


# Function.apply looks for functorch's transforms, which are none here, in a microsecond or two.
_apply: Callable[..., Any] = super(torch.autograd.Function, _Repeated).apply
