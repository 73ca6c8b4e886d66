"""Dense attention in torch: the fp64 reference, the eager baseline, and the error rule.

Everything here is written for clarity and takes seqlen_q * seqlen_k memory, in chunks. A kernel
is right when its error is at most twice that of eager operations in the inputs' own dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .philox import dropout_scale, keep_mask

FP64_RELATIVE_BOUND = 1e-10
_CHUNK_ELEMS = 1 << 24  # scores held at once: 128 MiB in fp64, and about six such matrices


@dataclass(frozen=True, eq=False, slots=True)
class Dropout:
    """Which elements survive, and what the survivors are multiplied by.

    Attributes:
        keep: bool (batch, num_heads, seqlen_q, seqlen_k).
        scale: 1 / (1 - realised probability of dropping), 0 where all are dropped.
    """

    keep: torch.Tensor
    scale: float

    @classmethod
    def of(
        cls, q: torch.Tensor, k: torch.Tensor, rng_state: torch.Tensor, threshold: int, bits: int
    ) -> Dropout:
        """The dropout of a call with this ``rng_state`` (int64 (2,): seed, offset)."""
        keep = keep_mask(
            rng_state[0],
            rng_state[1],
            q.shape[0],
            q.shape[2],
            q.shape[1],
            k.shape[1],
            threshold,
            bits,
            q.device,
        )
        return cls(keep, dropout_scale(threshold, bits))


@dataclass(frozen=True, eq=False, slots=True)
class Attention:
    """Results of one pass forward and, where ``dout`` was given, one back.

    Attributes:
        out: (batch, seqlen_q, num_heads, head_dim_v).
        lse: natural log of each row's softmax denominator, (batch, num_heads, seqlen_q).
        dq: gradients, shaped as their tensors; None without ``dout``.
        dk: likewise.
        dv: likewise.
    """

    out: torch.Tensor
    lse: torch.Tensor
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) by explicit operations in the inputs' dtype; differentiable.

    Layouts are (batch, seqlen, heads, head_dim); heads of k and v may divide those of q. Causal
    is bottom-right aligned. A row that sees no key has out 0, lse -inf and zero gradients. lse
    is at least fp32.
    """
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_heads_kv = k.shape[1], k.shape[2]
    scale = 1 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale
    lse_dtype = torch.promote_types(q.dtype, torch.float32)
    if seqlen_k == 0:
        lse = torch.full((batch, num_heads, seqlen_q), -math.inf, dtype=lse_dtype, device=q.device)
        return v.new_zeros(batch, seqlen_q, num_heads, v.shape[3]), lse
    group = num_heads // max(1, num_heads_kv)
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.matmul(q.transpose(1, 2), k.permute(0, 2, 3, 1)) * scale
    rows = torch.arange(seqlen_q, device=q.device).view(-1, 1)
    if causal:
        visible = torch.arange(seqlen_k, device=q.device) <= rows + (seqlen_k - seqlen_q)
        scores = scores.masked_fill(~visible, -math.inf)
    # rows without keys are computed as if they saw all, then cut: never a NaN in a gradient
    blind = rows + (seqlen_k - seqlen_q) < 0 if causal else rows < 0
    scores = scores.masked_fill(blind, 0.0)
    lse = torch.logsumexp(scores.to(lse_dtype), -1).masked_fill(blind[:, 0], -math.inf)
    probabilities = torch.softmax(scores, -1).masked_fill(blind, 0.0)
    if dropout is not None:
        probabilities = (probabilities * dropout.scale).masked_fill(~dropout.keep, 0.0)
    out = torch.matmul(probabilities, v.transpose(1, 2)).transpose(1, 2)
    return out, lse


def evaluate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor | None = None,
    dlse: torch.Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
) -> Attention:
    """``attention`` and its gradients in ``dtype``, by autograd, in chunks of batch and heads.

    Args:
        q: (batch, seqlen_q, num_heads, head_dim); k and v as in ``attention``.
        k: keys.
        v: values.
        dout: gradient of out; None for forward alone.
        dlse: gradient of lse; None for zero.
        dtype: what to compute in: torch.float64 gives the reference, the inputs' own dtype (the
            default) the eager baseline.
        causal: mask, bottom-right aligned.
        softmax_scale: default 1 / sqrt(head_dim).
        dropout: None keeps everything.
    """
    dtype = dtype or q.dtype
    lse_dtype = torch.promote_types(dtype, torch.float32)
    out = q.new_empty((*q.shape[:3], v.shape[3]), dtype=dtype)
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=lse_dtype)
    grads = [torch.empty_like(t, dtype=dtype) for t in (q, k, v)] if dout is not None else []
    for batches, heads, heads_kv in _chunks(q, k):
        parts = [q[batches, :, heads], k[batches, :, heads_kv], v[batches, :, heads_kv]]
        parts = [part.detach().to(dtype).requires_grad_(dout is not None) for part in parts]
        kept = dropout and Dropout(dropout.keep[batches, heads], dropout.scale)
        part_out, part_lse = attention(
            *parts, causal=causal, softmax_scale=softmax_scale, dropout=kept
        )
        out[batches, :, heads], lse[batches, heads] = part_out.detach(), part_lse.detach()
        if dout is None:
            continue
        outputs, cotangents = [part_out], [dout[batches, :, heads].to(dtype)]
        if dlse is not None:
            outputs.append(part_lse)
            cotangents.append(dlse[batches, heads].to(lse_dtype))
        if not part_out.requires_grad:  # no keys at all
            found = tuple(torch.zeros_like(part) for part in parts)
        else:
            found = torch.autograd.grad(outputs, parts, cotangents, materialize_grads=True)
        grads[0][batches, :, heads] = found[0]
        grads[1][batches, :, heads_kv], grads[2][batches, :, heads_kv] = found[1], found[2]
    return Attention(out, lse, *grads)


def _chunks(q: torch.Tensor, k: torch.Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """Slices (batch, heads, heads of k and v) that keep a score matrix below the limit."""
    batch, seqlen_q, num_heads = q.shape[:3]
    seqlen_k, num_heads_kv = k.shape[1:3]
    if batch * num_heads * num_heads_kv == 0:
        return
    group = num_heads // num_heads_kv
    per_head_kv = max(1, group * seqlen_q * seqlen_k)
    step_kv = min(num_heads_kv, max(1, _CHUNK_ELEMS // per_head_kv))
    step_batch = max(1, _CHUNK_ELEMS // (per_head_kv * num_heads_kv))
    for b in range(0, batch, step_batch):
        for h in range(0, num_heads_kv, step_kv):
            end = h + step_kv
            yield slice(b, b + step_batch), slice(h * group, end * group), slice(h, end)


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
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    dlse: torch.Tensor,
    ref: Attention,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout: Dropout | None = None,
) -> tuple[float, float, float]:
    """The errors of dq, dk, dv that any backward makes which reads out and lse as stored.

    Eager's error can be smaller by luck. Where a row sees one key, ds = dp - rowsum(dout * out)
    is a difference of equal numbers: eager may make no error, we make that of the rounding of
    out and of two dot products; it acts as a gradient of the row's lse would. And recomputed
    weights have the relative error of lse, its change to base 2 and that of the scores; it acts
    as a factor on dout would.

    Args:
        q: the call's arguments, in its dtype; k, v, dout and dlse too.
        k: likewise.
        v: likewise.
        dout: likewise.
        dlse: likewise.
        ref: the fp64 reference of the call.
        causal: as the call's.
        softmax_scale: as the call's.
        dropout: as the call's.
    """
    if min(q.numel(), k.numel(), v.numel(), dout.numel()) == 0:
        return 0.0, 0.0, 0.0
    eps = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps
    stored = (dout.double() * (ref.out.to(q.dtype).double() - ref.out)).sum(-1)
    summed = dout.double().abs().sum(-1) * v.abs().max().item() * eps
    row_error = (2 * stored + summed).transpose(1, 2)  # ours may round by an ulp, not a half
    weight_error = eps * (2 * _finite(ref.lse).abs() + 1)
    carried = evaluate(
        q,
        k,
        v,
        dout.double() * weight_error.transpose(1, 2).unsqueeze(-1),
        row_error + dlse * weight_error,
        dtype=torch.float64,
        causal=causal,
        softmax_scale=softmax_scale,
        dropout=dropout,
    )
    assert carried.dq is not None and carried.dk is not None and carried.dv is not None
    worst = [grad.abs().max().item() for grad in (carried.dq, carried.dk, carried.dv)]
    return worst[0], worst[1], worst[2]


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
