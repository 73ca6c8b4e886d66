"""Dense attention in torch: the fp64 reference and the eager baseline of any variant.

Everything here is written for clarity and takes seqlen_q * seqlen_k memory, in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..generator.program import Program, program_for
from ..generator.variant import Variant
from . import varlen
from .captures import signature_of
from .evaluate import Scope
from .evaluate import evaluate as value_of
from .philox import dropout_scale, keep_heads

_CHUNK_ELEMS = 1 << 24  # scores held at once: 128 MiB in fp64, and about six such matrices


@dataclass(frozen=True, eq=False, slots=True)
class Dropout:
    """Which elements survive dropout, and what the survivors are multiplied by.

    Attributes:
        rng_state: int64 (2,): seed, offset.
        threshold: an element is dropped iff its random value is below it.
        bits: of a random value, 8 or 16.
    """

    rng_state: torch.Tensor
    threshold: int
    bits: int

    @property
    def scale(self) -> float:
        """1 / (1 - realised probability of dropping), 0 where all are dropped."""
        return dropout_scale(self.threshold, self.bits)

    def keep(self, batches: range, heads: range, num_heads: int, q_len: int, k_len: int) -> Any:
        """Who survives: bool (len(batches), len(heads), q_len, k_len)."""
        device = self.rng_state.device
        b = torch.arange(batches.start, batches.stop, device=device).view(-1, 1)
        h = torch.arange(heads.start, heads.stop, device=device)
        seed, offset = self.rng_state.unbind()
        kept = keep_heads(
            seed, offset, (b * num_heads + h).flatten(), q_len, k_len, self.threshold, self.bits
        )
        return kept.view(len(batches), len(heads), q_len, k_len)


@dataclass(frozen=True, eq=False, slots=True)
class Problem:
    """One attention call: its tensors and what is computed of them.

    Attributes:
        q: (batch, seqlen_q, num_heads, head_dim); packed: (total_q, num_heads, head_dim).
        k: (batch, seqlen_k, num_heads_kv, head_dim); packed: (total_k, num_heads_kv, head_dim).
        v: as k, with head_dim_v.
        program: the score and the mask.
        captures: tensors that the program reads, by name, of the declared shapes.
        params: the program's run-time params, by name.
        sink: logit of each head that joins the softmax's denominator, or None.
        cu_seqlens_q: offsets of packed sequences, or None.
        cu_seqlens_k: likewise.
        softmax_scale: default 1 / sqrt(head_dim).
        dropout: None keeps everything.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    program: Program = field(default_factory=Program)
    captures: Mapping[str, torch.Tensor] = field(default_factory=dict)
    params: Mapping[str, int | float] = field(default_factory=dict)
    sink: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    softmax_scale: float | None = None
    dropout: Dropout | None = None

    @classmethod
    def of(
        cls,
        variant: Variant,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        arguments: Mapping[str, Any] | None = None,
        *,
        softmax_scale: float | None = None,
        dropout: Dropout | None = None,
    ) -> Problem:
        """The call of ``variant`` with these keyword ``arguments`` (captures, params, ...).

        Raises:
            ArgumentError: when they don't suit the variant.
        """
        signature = signature_of(variant)
        tensors, params = signature.named(signature.bind(q, k, arguments or {}))
        special = {name: tensors.pop(name, None) for name in ("sink", *varlen.NAMES)}
        return cls(
            q, k, v, program_for(variant), tensors, params,
            **special, softmax_scale=softmax_scale, dropout=dropout,
        )  # fmt: skip

    @property
    def wanted(self) -> tuple[str, ...]:
        """Captures whose gradients there are."""
        return tuple(capture.name for capture in self.program.captures if capture.grad)


@dataclass(frozen=True, eq=False, slots=True)
class Attention:
    """Results of one pass forward and, where ``dout`` was given, one back.

    Attributes:
        out: as q, with head_dim_v.
        lse: natural log of each row's softmax denominator, (batch, num_heads, seqlen_q); packed:
            (num_heads, total_q).
        gradients: dq, dk, dv, and those of the sink and of captures: d and the name; empty
            without ``dout``.
    """

    out: torch.Tensor
    lse: torch.Tensor
    gradients: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def named(self, quantity: str) -> torch.Tensor:
        """out, lse or a gradient."""
        return {"out": self.out, "lse": self.lse, **self.gradients}[quantity]


def attention(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) by explicit operations in the inputs' dtype; differentiable.

    A row that sees no key has out 0, lse -inf (the sink where there is one) and zero gradients
    of q, k and v. lse and the program's floats are at least fp32.
    """
    if problem.cu_seqlens_q is None:
        num_heads, num_heads_kv = problem.q.shape[2], problem.k.shape[2]
        batches = range(len(problem.q))
        return _dense(problem, _Piece(batches, range(num_heads), range(num_heads_kv), num_heads))
    rows = len(problem.q), problem.q.shape[1]
    out = problem.v.new_zeros(*rows, problem.v.shape[2])
    lse = out.new_full(rows[::-1], -math.inf, dtype=_at_least_fp32(out.dtype))
    for piece in _sequences(problem, range(problem.q.shape[1]), range(problem.k.shape[1])):
        part_out, part_lse = _dense(piece.of(problem), piece)
        assert piece.queries is not None
        index = torch.arange(piece.queries.start, piece.queries.stop, device=out.device)
        out = out.index_copy(0, index, part_out[0])
        lse = lse.index_copy(1, index, part_lse[0])
    return out, lse


def evaluate(
    problem: Problem,
    dout: torch.Tensor | None = None,
    dlse: torch.Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Attention:
    """``attention`` and its gradients in ``dtype``, by autograd, in chunks of batch and heads.

    Args:
        problem: the call.
        dout: gradient of out; None for forward alone.
        dlse: gradient of lse; None for zero.
        dtype: what to compute in: torch.float64 gives the reference, the inputs' own dtype (the
            default) the eager baseline.
    """
    dtype = dtype or problem.q.dtype
    problem = _converted(problem, dtype)
    backward = dout is not None
    q, k, v = problem.q, problem.k, problem.v
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    lse_shape = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    lse = q.new_full(lse_shape, -math.inf, dtype=_at_least_fp32(dtype))
    leaves = {"q": q, "k": k, "v": v}
    shared = {name: problem.captures[name] for name in problem.wanted}
    if problem.sink is not None:
        shared["sink"] = problem.sink
    for leaf in shared.values():
        leaf.requires_grad_(backward)
    grads = {name: torch.zeros_like(leaf) for name, leaf in leaves.items() if backward}
    grads |= {
        name: torch.zeros_like(leaf, dtype=_at_least_fp32(leaf.dtype))
        for name, leaf in shared.items()
        if backward
    }
    for piece in _pieces(problem):
        part = piece.of(problem)
        parts = [t.requires_grad_(backward) for t in (part.q, part.k, part.v)]
        part_out, part_lse = _dense(part, piece)
        piece.rows(out)[...], piece.stats(lse)[...] = part_out.detach(), part_lse.detach()
        if dout is None or not (part_out.requires_grad or part_lse.requires_grad):
            continue
        outputs, cotangents = [part_out], [piece.rows(dout).to(dtype)]
        if dlse is not None:
            outputs.append(part_lse)
            cotangents.append(piece.stats(dlse).to(lse.dtype))
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in pairs], [*parts, *shared.values()], [c for _, c in pairs],
            materialize_grads=True,
        )  # fmt: skip
        piece.rows(grads["q"])[...] = found[0]
        piece.columns(grads["k"])[...] = found[1]
        piece.columns(grads["v"])[...] = found[2]
        for name, grad in zip(shared, found[3:], strict=True):
            grads[name] += grad
    leaves |= shared
    named = {f"d{name}": grad.to(leaves[name].dtype) for name, grad in grads.items()}
    return Attention(out, lse, named)


def _at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _converted(problem: Problem, dtype: torch.dtype) -> Problem:
    """``problem`` on detached tensors of ``dtype``; in fp64, captures too become that."""
    captures = {
        name: tensor.detach().to(dtype if dtype == torch.float64 else tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in problem.captures.items()
    }
    sink = problem.sink
    return replace(
        problem,
        q=problem.q.detach().to(dtype),
        k=problem.k.detach().to(dtype),
        v=problem.v.detach().to(dtype),
        captures=captures,
        sink=None if sink is None else sink.detach().to(_at_least_fp32(dtype)),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a call that is computed at once: sequences and heads, or one packed sequence."""

    batches: range
    heads: range
    heads_kv: range
    num_heads: int  # of the whole call
    queries: range | None = None  # rows of the packed sequence
    keys: range | None = None

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """The piece of q, out, dout or dq, with a batch."""
        return _cut(tensor, self.batches, self.queries, self.heads)

    def columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """The piece of k, v, dk or dv, with a batch."""
        return _cut(tensor, self.batches, self.keys, self.heads_kv)

    def stats(self, tensor: torch.Tensor) -> torch.Tensor:
        """The piece of lse or dlse, with a batch."""
        heads = slice(self.heads.start, self.heads.stop)
        if self.queries is None:
            return tensor[self.batches.start : self.batches.stop, heads]
        return tensor[None, heads, self.queries.start : self.queries.stop]

    def of(self, problem: Problem) -> Problem:
        """``problem`` with q, k and v of the piece, and captures of the packed sequence's range."""
        captures = dict(problem.captures)
        for capture in problem.program.captures:
            for axis, dim in enumerate(capture.dims):
                span = {"total_q": self.queries, "total_k": self.keys}.get(str(dim))
                if span is not None:
                    tensor = captures[capture.name]
                    captures[capture.name] = tensor.narrow(axis, span.start, len(span))
        q, k, v = self.rows(problem.q), self.columns(problem.k), self.columns(problem.v)
        return replace(problem, q=q, k=k, v=v, captures=captures)


def _cut(tensor: torch.Tensor, batches: range, rows: range | None, heads: range) -> torch.Tensor:
    if rows is None:
        return tensor[batches.start : batches.stop, :, heads.start : heads.stop]
    return tensor[None, rows.start : rows.stop, heads.start : heads.stop]


def _sequences(problem: Problem, heads: range, heads_kv: range) -> Iterator[_Piece]:
    """The packed sequences that have queries or keys."""
    assert problem.cu_seqlens_q is not None and problem.cu_seqlens_k is not None
    starts_q, starts_k = problem.cu_seqlens_q.tolist(), problem.cu_seqlens_k.tolist()
    for i in range(len(starts_q) - 1):
        queries, keys = (range(s[i], s[i + 1]) for s in (starts_q, starts_k))
        if queries or keys:
            yield _Piece(range(i, i + 1), heads, heads_kv, len(heads), queries, keys)


def _pieces(problem: Problem) -> Iterator[_Piece]:
    """Pieces of batch and heads that keep a score matrix below the limit."""
    q, k = problem.q, problem.k
    num_heads, num_heads_kv = q.shape[-2], k.shape[-2]
    if num_heads * num_heads_kv == 0:
        return
    group = num_heads // num_heads_kv
    if problem.cu_seqlens_q is not None:
        for whole in _sequences(problem, range(num_heads), range(num_heads_kv)):
            assert whole.queries is not None and whole.keys is not None
            per_head_kv = max(1, group * len(whole.queries) * len(whole.keys))
            for heads, heads_kv in _head_steps(num_heads_kv, group, per_head_kv):
                yield replace(whole, heads=heads, heads_kv=heads_kv)
        return
    batch, per_head_kv = len(q), max(1, group * q.shape[1] * k.shape[1])
    step = max(1, _CHUNK_ELEMS // (per_head_kv * num_heads_kv))
    for b in range(0, batch, step):
        for heads, heads_kv in _head_steps(num_heads_kv, group, per_head_kv):
            yield _Piece(range(b, min(batch, b + step)), heads, heads_kv, num_heads)


def _head_steps(num_heads_kv: int, group: int, per_head_kv: int) -> Iterator[tuple[range, range]]:
    step = min(num_heads_kv, max(1, _CHUNK_ELEMS // per_head_kv))
    for h in range(0, num_heads_kv, step):
        end = min(num_heads_kv, h + step)
        yield range(h * group, end * group), range(h, end)


def _dense(problem: Problem, piece: _Piece) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a piece, whose q, k and v are ``problem``'s."""
    q, k, v = problem.q, problem.k, problem.v
    stats_dtype, device = _at_least_fp32(q.dtype), q.device
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    scope = replace(
        Scope.of_block(
            piece.batches, piece.heads, range(seqlen_q), range(seqlen_k),
            sizes=(seqlen_q, seqlen_k, piece.num_heads, 1), device=device,
        ),
        captures=problem.captures, params=problem.params, dtype=stats_dtype,
    )  # fmt: skip
    group = len(piece.heads) // max(1, len(piece.heads_kv))
    scope = replace(scope, h_kv=scope.h // max(1, group))
    program = problem.program
    visible = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
    if program.mask is not None:
        visible = value_of(program.mask, scope)
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = 1 / math.sqrt(q.shape[3]) if problem.softmax_scale is None else problem.softmax_scale
    scores = torch.matmul(q.transpose(1, 2), k.permute(0, 2, 3, 1)) * scale
    visible = visible.expand(scores.shape)
    if program.score is not None:
        # what is masked may be anything: it enters as 0, and no derivative leaves it
        score = scores.masked_fill(~visible, 0.0)
        scores = value_of(program.score, replace(scope, score=score, active=visible))
        scores = scores.to(q.dtype).expand(visible.shape)
    weights, lse = _softmax(scores.masked_fill(~visible, -math.inf), visible, problem, piece)
    if problem.dropout is not None:
        keep = problem.dropout.keep(piece.batches, piece.heads, piece.num_heads, seqlen_q, seqlen_k)
        weights = (weights * problem.dropout.scale).masked_fill(~keep, 0.0)
    return torch.matmul(weights, v.transpose(1, 2)).transpose(1, 2), lse


def _softmax(
    scores: torch.Tensor, visible: torch.Tensor, problem: Problem, piece: _Piece
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, lse) of masked scores."""
    stats_dtype = _at_least_fp32(scores.dtype)
    if problem.sink is not None:
        sink = problem.sink[piece.heads.start : piece.heads.stop].view(1, -1, 1, 1)
        sink = sink.expand(*scores.shape[:3], 1)
        lse = torch.logsumexp(torch.cat([scores.to(stats_dtype), sink], -1), -1)
        weights = torch.softmax(torch.cat([scores, sink.to(scores.dtype)], -1), -1)
        return weights[..., :-1], lse
    # rows without keys are computed as if they saw all, then cut: never a NaN in a gradient
    blind = ~visible.any(-1, keepdim=True)
    if scores.shape[-1] == 0:
        return scores, scores.sum(-1, dtype=stats_dtype).fill_(-math.inf)
    scores = scores.masked_fill(blind, 0.0)
    lse = torch.logsumexp(scores.to(stats_dtype), -1).masked_fill(blind[..., 0], -math.inf)
    return torch.softmax(scores, -1).masked_fill(blind, 0.0), lse
