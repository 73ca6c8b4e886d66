"""The error rule: a kernel's results against the fp64 reference and the eager baseline.

A kernel is right when its error is at most twice that of eager operations in the inputs' own
dtype, plus the rounding of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from . import reference

FP64_RELATIVE_BOUND = 1e-10


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one tensor of ours stands against the reference.

    Attributes:
        max_error: largest absolute difference; inf where one is NaN and the other isn't.
        coordinate: where it is, () for an empty tensor.
        ours: our value there.
        reference: the reference's.
        bound: what max_error may be by the error rule.
        ok: whether it is.
    """

    max_error: float
    coordinate: tuple[int, ...]
    ours: float
    reference: float
    bound: float
    ok: bool

    def __str__(self) -> str:
        verdict = "within" if self.ok else "above"
        return (
            f"max error {self.max_error:.3g} {verdict} the bound {self.bound:.3g} at "
            f"{self.coordinate}: ours {self.ours:.9g}, reference {self.reference:.9g}"
        )


def error_bound(
    ref: torch.Tensor, eager: torch.Tensor, dtype: torch.dtype, floor: float = 0.0
) -> float:
    """What max|ours - ref| may be: 2 * max|eager - ref| + the rounding of ref in ``dtype``.

    fp64 results are held to 1e-10 relative to the largest element instead.

    Args:
        ref: the fp64 reference.
        eager: explicit operations in the inputs' dtype.
        dtype: of the tensor that is judged.
        floor: takes the place of eager's error where that is smaller; see
            ``storage_floors``.
    """
    if ref.numel() == 0:
        return floor
    if dtype == torch.float64:
        return FP64_RELATIVE_BOUND * _finite(ref).abs().max().item() + floor
    eager_error = (_finite(eager.double()) - _finite(ref)).abs().max().item()
    rounding = (_finite(ref.to(dtype).double()) - _finite(ref)).abs().max().item()
    return max(2 * eager_error, floor) + rounding


def compare(
    ours: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor, floor: float = 0.0
) -> Comparison:
    """Judges ``ours`` by the error rule; infinities must be equal, NaN is never right."""
    bound = error_bound(ref, eager, ours.dtype, floor)
    if ours.shape != ref.shape:
        raise ValueError(f"compare: expected shape {tuple(ref.shape)}, got {tuple(ours.shape)}.")
    if ref.numel() == 0:
        return Comparison(0.0, (), 0.0, 0.0, bound, True)
    actual = ours.double()
    error = (actual - ref).abs()
    error = torch.where(actual == ref, 0.0, error).nan_to_num(nan=math.inf, posinf=math.inf)
    flat = int(error.argmax())
    worst = error.flatten()[flat].item()
    coordinate = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
    return Comparison(
        worst, coordinate, actual[coordinate].item(), ref[coordinate].item(), bound, worst <= bound
    )


def storage_floors(
    problem: reference.Problem,
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    ref: reference.Attention,
) -> Mapping[str, float]:
    """The errors of gradients that any backward makes which reads out and lse as stored, by name.

    Eager's error can be smaller by luck. Where a row sees one key, ds = dp - rowsum(dout * out)
    is a difference of equal numbers: eager may make no error, we make that of the rounding of
    out and of two dot products; it acts as a gradient of the row's lse would. And recomputed
    weights have the relative error of lse, its change to base 2 and that of the scores; it acts
    as a factor on dout would. Both are carried through the exact derivative, so that this holds
    for the gradients of captures and of the sink as it does for dq.

    Args:
        problem: the call, in its dtype.
        dout: as the call's.
        dlse: as the call's.
        ref: the fp64 reference of the call.
    """
    q, v = problem.q, problem.v
    if min(q.numel(), v.numel(), dout.numel()) == 0:
        return dict.fromkeys(ref.gradients, 0.0)
    eps = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps
    stored = (dout.double() * (ref.out.to(q.dtype).double() - ref.out)).sum(-1)
    summed = dout.double().abs().sum(-1) * v.abs().max().item() * eps
    # ours may round by an ulp, not a half; rows lie last in lse
    row_error = (2 * stored + summed).transpose(-2, -1)
    weight_error = eps * (2 * _finite(ref.lse).abs() + 1)
    dlse_error = row_error if dlse is None else row_error + dlse * weight_error
    carried = reference.evaluate(
        problem,
        dout.double() * weight_error.transpose(-2, -1).unsqueeze(-1),
        dlse_error,
        dtype=torch.float64,
    )
    return {name: grad.abs().max().item() for name, grad in carried.gradients.items()}


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
