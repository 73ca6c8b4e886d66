"""Compiled passes -> the dispatcher operators ``flashgen::forward`` and ``flashgen::backward``.

Traced calls come here. Importing this module registers the operators: a process that runs a saved
graph and loads no kernel of its own imports it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .arguments import lse_dtype, lse_shape
from .ops import Runner, placed, runner_of

NAMESPACE = "flashgen"
_ARGUMENTS = (  # ints and floats apart: torch.export saves no list of both, nor an empty one
    "str kernel, float softmax_scale, int dropout_threshold, Tensor[] extras, SymInt[] ints, "
    "float[] floats"
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
    scalars = (softmax_scale, dropout_threshold, list(extras), *split(numbers))
    result = torch.ops.flashgen.forward(q, k, v, rng_state, kernel, *scalars)
    return result[0], result[1]


def split(numbers: Sequence[int | float]) -> tuple[list[int], list[float]]:
    """(ints, floats) of a call's numbers, as the operators take them."""
    whole = [isinstance(number, int | torch.SymInt) for number in numbers]
    ints = [number for number, is_int in zip(numbers, whole, strict=True) if is_int]
    floats = [number for number, is_int in zip(numbers, whole, strict=True) if not is_int]
    return ints, floats  # type: ignore[return-value]


def _joined(
    runner: Runner, ints: Sequence[int], floats: Sequence[float]
) -> tuple[int | float, ...]:
    """The numbers of a call, in the order of its kernel."""
    if not floats:
        return tuple(ints)
    each, every = iter(ints), iter(floats)
    return tuple(next(each) if is_int else next(every) for is_int in runner.integral)


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
    ints: Sequence[int],
    floats: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor]:
    runner = runner_of(kernel, q.device)
    rest = (softmax_scale, dropout_threshold, extras, _joined(runner, ints, floats))
    return runner.run_forward(q, k, v, rng_state, *rest)


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
    ints: Sequence[int],
    floats: Sequence[float],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    runner = runner_of(kernel, q.device)
    tensors = (dout, q, k, v, out, lse, dlse, rng_state)
    rest = (softmax_scale, dropout_threshold, extras, _joined(runner, ints, floats))
    dq, dk, dv, *captured = runner.run_backward(*tensors, *rest)
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
    captured = [extras[slot] for slot in runner_of(kernel, q.device).gradient_slots]
    dq, dk, dv, *more = (t.new_empty(t.shape) for t in (q, k, v, *captured))
    return dq, dk, dv, more


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, rng_state, *ctx.scalars, extras, ints, floats = inputs
    ctx.numbers = (ints, floats)
    ctx.save_for_backward(q, k, v, *output, rng_state, *extras)
    ctx.set_materialize_grads(False)


def _traced_backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> Any:
    q, k, v, out, lse, rng_state, *extras = ctx.saved_tensors
    if dout is None:
        dout = torch.zeros_like(out)
    *grads, captured = torch.ops.flashgen.backward(
        dout, q, k, v, out, lse, dlse, rng_state, *ctx.scalars, extras, *ctx.numbers
    )
    captured_grads = placed(runner_of(ctx.scalars[0], q.device), captured, len(extras))
    # torch takes an empty list for one of tensors, and wants its like back
    no_numbers: list[list[None] | None] = [None if one else [] for one in ctx.numbers]
    return (*grads, None, None, None, None, captured_grads, *no_numbers)


_LIBRARY = _registered()  # operators live as long as this
