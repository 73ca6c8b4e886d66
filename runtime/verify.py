"""Catalogue entries -> rows of error and bound, by running each kernel on random data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..generator.variant import Variant
from . import error_rule
from .catalogue import CatalogueEntry
from .devices import device_named, target_of
from .kernel import Kernel
from .philox import dropout_threshold
from .reference import Dropout, Problem, evaluate
from .samples import Inputs, Shape, random_inputs

DROPOUT_P = 0.2
FORWARD_QUANTITIES = ("out", "lse")


SHAPES = (
    Shape(2, 4, 2, 113, 203),  # unequal, no multiple of any tile, grouped heads
    Shape(1, 2, 1, 257, 130),  # causal: rows without keys
    Shape(1, 1, 1, 1, 1),
    Shape(1, 2, 2, 128, 128),  # whole tiles
)


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """The worst of one quantity over all shapes.

    Attributes:
        key: of the variant.
        target: what ran it.
        pass_name: "forward" or "backward".
        quantity: out, lse, dq, dk, dv, or d and the name of a capture or ``sink``.
        max_error: largest absolute difference from the fp64 reference.
        bound: what it may be by the error rule, on the same data.
        ok: whether it was within, for every shape.
        detail: the shape, coordinate and both values of the worst case.
    """

    key: str
    target: str
    pass_name: str
    quantity: str
    max_error: float
    bound: float
    ok: bool
    detail: str = ""


def verify(
    entries: Sequence[CatalogueEntry],
    device: torch.device | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[VerifyRow]:
    """One row for each key, pass and quantity; kernels that aren't built are built first.

    Args:
        entries: what to run.
        device: where; the best of this machine by default. A dtype that has no GPU kernels runs
            on the CPU.
        progress: called with each key when it is done.
    """
    place = device_named(device)
    rows: list[VerifyRow] = []
    for entry in entries:
        has_kernel = entry.variant.dtype in target_of(place).dtypes
        rows += _verify_entry(entry, place if has_kernel else torch.device("cpu"))
        if progress is not None:
            progress(entry.key)
    return rows


def _verify_entry(entry: CatalogueEntry, device: torch.device) -> Iterator[VerifyRow]:
    kernel = Kernel(entry.variant, device, spec=entry.spec)
    with_backward = "backward" in entry.spec.passes
    worst: dict[str, tuple[error_rule.Comparison, Shape]] = {}
    for shape in SHAPES:
        for quantity, found in compare_call(kernel, shape, device, backward=with_backward).items():
            if quantity not in worst or _badness(found) > _badness(worst[quantity][0]):
                worst[quantity] = (found, shape)
    for quantity, (found, shape) in worst.items():
        yield VerifyRow(
            kernel.key,
            kernel.target.name,
            "forward" if quantity in FORWARD_QUANTITIES else "backward",
            quantity,
            found.max_error,
            found.bound,
            found.ok,
            f"{shape}: {found}",
        )


def _badness(found: error_rule.Comparison) -> tuple[bool, float]:
    return not found.ok, found.max_error / found.bound if found.bound else found.max_error


def compare_call(
    kernel: Kernel,
    shape: Shape,
    device: torch.device | str,
    *,
    dropout_p: float = DROPOUT_P,
    softmax_scale: float | None = None,
    backward: bool = True,
    seed: int = 0,
    factor: float = 1.0,
) -> dict[str, error_rule.Comparison]:
    """Each quantity of one call of both passes against the reference, by name.

    Args:
        kernel: what to run.
        shape: sizes of the random inputs.
        device: where to run it, the reference too.
        dropout_p: used where the variant has dropout.
        softmax_scale: default 1 / sqrt(head_dim).
        backward: whether to run the backward pass.
        seed: of the inputs and of dropout.
        factor: what the normal inputs are multiplied by.
    """
    variant = kernel.variant
    data = random_inputs(variant, shape, device, seed, factor)
    q, k, v = data.q, data.k, data.v
    p = dropout_p if variant.dropout else 0.0
    out, lse, rng_state = kernel.forward(
        q, k, v, softmax_scale=softmax_scale, dropout_p=p, seed=seed, offset=4, **data.arguments
    )
    ours = {"out": out, "lse": lse}
    if backward:
        grads = kernel.backward(
            data.dout, q, k, v, out, lse,
            dlse=data.dlse, softmax_scale=softmax_scale, dropout_p=p, rng_state=rng_state,
            **data.arguments,
        )  # fmt: skip
        ours |= {"dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
        ours |= {f"d{name}": grad for name, grad in grads.captures.items()}
    return compare_results(
        variant, data, ours, rng_state=rng_state, dropout_p=p, softmax_scale=softmax_scale
    )


def compare_results(
    variant: Variant,
    data: Inputs,
    ours: dict[str, torch.Tensor],
    *,
    rng_state: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
) -> dict[str, error_rule.Comparison]:
    """Each tensor of ``ours`` (out, lse, dq, dk, dv, d<capture>, by name) by the error rule."""
    dropout = _dropout_of(variant, rng_state, dropout_p)
    problem = Problem.of(
        variant, data.q, data.k, data.v, data.arguments,
        softmax_scale=softmax_scale, dropout=dropout,
    )  # fmt: skip
    backward = not set(ours) <= set(FORWARD_QUANTITIES)
    grads = (data.dout, data.dlse) if backward else (None, None)
    ref = evaluate(problem, *grads, dtype=torch.float64)
    eager = evaluate(problem, *grads)
    found = {
        name: error_rule.compare(tensor, ref.named(name), eager.named(name))
        for name, tensor in ours.items()
    }
    wrong = [name for name in ref.gradients if name in found and not found[name].ok]
    if wrong:  # or eager was right by luck
        floors = error_rule.storage_floors(problem, data.dout, data.dlse, ref)
        for name in wrong:
            found[name] = error_rule.compare(
                ours[name], ref.named(name), eager.named(name), floors[name]
            )
    return found


def _dropout_of(
    variant: Variant, rng_state: torch.Tensor | None, dropout_p: float
) -> Dropout | None:
    if rng_state is None:
        return None
    bits = variant.dropout_bits
    return Dropout(rng_state, dropout_threshold(dropout_p, bits), bits)
