"""Compiled passes -> the dispatcher operators ``flashgen::forward`` and ``flashgen::backward``.

Traced calls come here. Importing this module registers the operators: a process that runs a saved
graph and loads no kernel of its own imports it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .arguments import lse_dtype, lse_shape
from .ops import placed, runner_of

NAMESPACE = "flashgen"
_ARGUMENTS = (
    "str kernel, float softmax_scale, int dropout_threshold, Tensor[] extras, Scalar[] numbers"
)
FORWARD_SCHEMA = (
    f"forward(Tensor q, Tensor k, Tensor v, Tensor? rng_state, {_ARGUMENTS}) "
    "-> (Tensor out, Tensor lse)"
)
BACKWARD_SCHEMA = (
    "backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, "
    f"Tensor? rng_state, {_ARGUMENTS}) -> (Tensor dq, Tensor dk, Tensor dv, "
    "Tensor[] captured)"
)


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rng_state: torch.Tensor | None,
    kernel: str,
    softmax_scale: float,
    dropout_threshold: int,
    extras: Sequence[torch.Tensor],
    numbers: Sequence[int | float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) by the operator: a call that can be put in a graph. ``kernel`` is a handle."""
    scalars = (softmax_scale, dropout_threshold, list(extras), list(numbers))
    result = torch.ops.flashgen.forward(q, k, v, rng_state, kernel, *scalars)
    return result[0], result[1]


def _registered() -> torch.library.Library:
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
    extras: Sequence[torch.Tensor],
    numbers: Sequence[int | float],
) -> tuple[torch.Tensor, torch.Tensor]:
    scalars = (softmax_scale, dropout_threshold)
    return runner_of(kernel).run_forward(q, k, v, rng_state, *scalars, extras, numbers)


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
    extras: Sequence[torch.Tensor],
    numbers: Sequence[int | float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    tensors = (dout, q, k, v, out, lse, dlse, rng_state)
    scalars = (softmax_scale, dropout_threshold)
    dq, dk, dv, *captured = runner_of(kernel).run_backward(*tensors, *scalars, extras, numbers)
    return dq, dk, dv, captured


def _fake_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out, q.new_empty(lse_shape(q.shape), dtype=lse_dtype(q.dtype))


def _fake_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    kernel, extras = rest[4], rest[7]
    captured = [extras[slot] for slot in runner_of(kernel).gradient_slots]
    dq, dk, dv, *more = (t.new_empty(t.shape) for t in (q, k, v, *captured))
    return dq, dk, dv, more


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, rng_state, *ctx.scalars, extras, ctx.numbers = inputs
    ctx.save_for_backward(q, k, v, *output, rng_state, *extras)
    ctx.set_materialize_grads(False)


def _traced_backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> Any:
    q, k, v, out, lse, rng_state, *extras = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    *grads, captured = torch.ops.flashgen.backward(
        dout, q, k, v, out, lse, dlse, rng_state, *ctx.scalars, extras, ctx.numbers
    )
    captured_grads = placed(runner_of(ctx.scalars[0]), captured, len(extras))
    # torch takes an empty list for one of tensors, and wants its like back
    no_numbers: list[None] | None = None if ctx.numbers else []
    return (*grads, None, None, None, None, captured_grads, no_numbers)


_LIBRARY = _registered()  # operators live as long as this
