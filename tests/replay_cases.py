"""Inputs on which other attention systems failed and that need the variant language.

Each case is a spec, its inputs and an independently written dense formula. The ids are those of
the replay list: R02 is r02. Sizes are the reported ones with ``full``, else smaller ones of the
same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.generator.spec import load_specs
from flashgen.runtime.arguments import TORCH_DTYPES, lse_dtype, lse_shape
from flashgen.runtime.samples import Inputs

TRUE = torch.tensor(True)


@dataclass(frozen=True)
class Case:
    """One report.

    Attributes:
        name: its id, and what tells several of one report apart.
        spec: YAML of the variant.
        sizes: (batch, seqlen_q, seqlen_k, num_heads, num_heads_kv), smaller than reported; of
            packed calls batch is 0 and the lengths are totals.
        full: the reported sizes, where ``sizes`` are smaller.
        arguments: the keyword arguments, of a Draw and the sizes.
        formula: (out, lse) of q, k, v and the arguments.
        change: what is done to (q, k, v, dout), in place.
        factor: what normal values are multiplied by.
    """

    name: str
    spec: str
    sizes: tuple[int, int, int, int, int]
    formula: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    arguments: Callable[..., dict[str, Any]] = lambda draw, sizes: {}
    full: tuple[int, int, int, int, int] | None = None
    change: Callable[..., None] = lambda q, k, v, dout: None
    factor: float = 1.0

    @property
    def variant(self):
        return load_specs(self.spec, f"{self.name}.yaml")[0].variants[0]

    def inputs(self, device="cpu", full=False) -> Inputs:
        variant, draw = self.variant, Draw(device)
        sizes = self.full if full and self.full else self.sizes
        batch, seqlen_q, seqlen_k, heads, heads_kv = sizes
        lead = (batch,) if batch else ()
        shapes = [
            (*lead, seqlen_q, heads, variant.head_dim),
            (*lead, seqlen_k, heads_kv, variant.head_dim),
            (*lead, seqlen_k, heads_kv, variant.head_dim_v),
            (*lead, seqlen_q, heads, variant.head_dim_v),
        ]
        dtype = TORCH_DTYPES[variant.dtype]
        tensors = [(draw.normal(*shape) * self.factor).to(dtype) for shape in shapes]
        self.change(*tensors)
        dlse = draw.normal(*lse_shape(tensors[0].shape)).to(lse_dtype(dtype))
        return Inputs(*tensors, dlse, self.arguments(draw, sizes))


class Draw:
    """Random tensors, the same at each run."""

    def __init__(self, device):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(0)

    def normal(self, *size):
        return torch.randn(size, generator=self.generator, device=self.device)

    def keep(self, *size):
        return torch.rand(size, generator=self.generator, device=self.device) < 0.5

    def tensor(self, values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=self.device)


def attend(scores, visible, v, sink=None):
    """(out, lse) of scores (b, h, i, j), in their dtype."""
    largest = scores.detach().masked_fill(~visible, -math.inf).amax(-1, keepdim=True)
    largest = largest.nan_to_num(neginf=0.0)
    if sink is not None:
        largest = largest.maximum(sink.detach().view(1, -1, 1, 1))
    weights = torch.where(visible, (scores - largest).exp(), torch.zeros_like(scores))
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink.view(1, -1, 1, 1) - largest).exp()
    lse = (total.log() + largest)[..., 0]
    weights = weights / torch.where(total == 0, torch.ones_like(total), total)
    v = v.repeat_interleave(scores.shape[1] // v.shape[2], 2)
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse


def scores_of(q, k, scale=None):
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    return torch.einsum("bihd,bjhd->bhij", q, k) * (scale or 1 / math.sqrt(q.shape[3]))


def grid(q, k):
    i = torch.arange(q.shape[1], device=q.device)[:, None]
    return i, torch.arange(k.shape[1], device=q.device)


def causal(q, k):
    i, j = grid(q, k)
    return j <= i + len(j) - len(i)


def packed(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """Causal attention of packed sequences, one at a time."""
    out = torch.zeros_like(q[..., :1]).expand(*q.shape[:2], v.shape[2]).clone()
    lse = torch.full((q.shape[1], len(q)), -math.inf, dtype=q.dtype, device=q.device)
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(ends_q) - 1):
        rows, keys = slice(*ends_q[b : b + 2]), slice(*ends_k[b : b + 2])
        if ends_q[b] < ends_q[b + 1] and ends_k[b] < ends_k[b + 1]:
            part = q[None, rows], k[None, keys]
            found = attend(scores_of(*part), causal(*part), v[None, keys])
            out[rows], lse[:, rows] = found[0][0], found[1][0]
    return out, lse


def packed_in_16(q, k, v, **cu_seqlens):
    batches = [t.view(-1, 16, *t.shape[1:]) for t in (q, k, v)]
    out, lse = attend(scores_of(*batches[:2]), causal(*batches[:2]), batches[2])
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1)


def add_the_distance(q, k, v):
    i, j = grid(q, k)
    return attend(scores_of(q, k) + (i - j), causal(q, k), v)


def offsets(q_ends, k_ends, dtype=torch.int32):
    return lambda draw, sizes: {
        "cu_seqlens_q": draw.tensor(q_ends, dtype),
        "cu_seqlens_k": draw.tensor(k_ends, dtype),
    }


def window_r06(q, k, v, window_left, window_right):
    i, j = grid(q, k)
    place = i + len(j) - len(i)
    visible = (j >= place - window_left) & (j <= place + window_right)
    return attend(scores_of(q, k), visible, v)


def lower_the_scores(q, k, v, dout):
    q.mul_(0.1)
    k.mul_(0.1)
    q[..., 0], k[..., 0] = 1, -120 * 8


def third_mask(q, k, v):
    i, j = grid(q, k)
    return attend(scores_of(q, k), (j <= i) | (j % 3 == 0), v)


def relative_bias(q, k, v, rel_bias):
    i, j = grid(q, k)
    near = (i - j >= 0) & (i - j < 64)
    bias = torch.gather(rel_bias, 3, (i - j).clamp(0, 63).expand(*rel_bias.shape[:2], -1, -1))
    return attend(scores_of(q, k) + bias, near, v)


def poison_the_tail(q, k, v, dout):
    for tensor in (q, k, v, dout):
        tensor[944:] = math.nan


def r17(q, k, v, **cu_seqlens):
    q, k, v = (torch.cat([t[:944], torch.zeros_like(t[944:])]) for t in (q, k, v))
    return packed(q, k, v, **cu_seqlens)


def hand_made_r18(q, k, v, dout):
    for tensor, value in ((q, 1), (k, 1), (v, 2), (dout, 1)):
        tensor.zero_()
        tensor[..., 0] = value


def prefix_lm(q, k, v, prefix):
    _, j = grid(q, k)
    return attend(scores_of(q, k), causal(q, k) | (j < prefix.view(-1, 1, 1, 1)), v)


def documents(draw, sizes):
    seqlen = sizes[1]
    ends = [seqlen * part // 100 for part in (7, 20, 35, 36, 55, 70, 92)]
    ends.insert(3, ends[2] + 1)  # one of a single token
    return {"doc": torch.bucketize(torch.arange(seqlen), torch.tensor(ends), right=True).int()}


def document_mask(q, k, v, doc):
    return attend(scores_of(q, k), (doc[:, None] == doc) & causal(q, k), v)


PACKED = "head_dim: {}\ndtype: {}\nlayout: varlen\ncausal: true\n"
D64 = "head_dim: 64\ndtype: {}\n"
LEARNED = "captures: {{{}: {{dims: [{}], dtype: fp32, grad: true}}}}\n"
R22 = [0, 0, 1208, 2048, 2048], [0, 2538, 4280, 5120, 8192]

CASES = (
    Case(
        "r02", PACKED.format(32, "fp16"), (0, 256, 3, 1, 1), packed,
        offsets([0, 76, 110, 256], [0, 1, 2, 3]), factor=3.0,
    ),
    Case(
        "r03", PACKED.format(64, "fp16"), (0, 2, 8, 9, 3), packed,
        offsets([0, 0, 1, 1, 2], [0, 0, 3, 3, 8], torch.int64),
    ),
    Case(
        "r05", PACKED.format(64, "fp16"), (0, 4800, 4800, 1, 1), packed_in_16,
        lambda draw, sizes: offsets(*[range(0, sizes[1] + 1, 16)] * 2)(draw, sizes),
        full=(0, 1_280_000, 1_280_000, 1, 1),
    ),
    Case(
        "r06", D64.format("fp16") + "window: runtime\n", (1, 256, 128, 2, 2), window_r06,
        lambda draw, sizes: {"window_left": 64, "window_right": 200},
    ),
    Case(
        "r08", D64.format("bf16") + "mask: kv_idx <= q_idx or kv_idx % 3 == 0\n",
        (1, 192, 192, 1, 1), third_mask, full=(1, 704, 704, 1, 1), change=lower_the_scores,
    ),
    Case(
        "r09", D64.format("fp16") + "score: score - 128.0\n", (1, 1, 128, 1, 1),
        lambda q, k, v: attend(scores_of(q, k) - 128, TRUE.to(q.device), v),
    ),
    *(
        Case(
            f"r10-{seqlen}", D64.format("bf16") + "causal: true\nscore: score + (q_idx - kv_idx)\n",
            (1, seqlen, seqlen, 2, 2),
            add_the_distance,
        )
        for seqlen in (257, 1025)
    ),
    *(
        Case(
            f"r11-{seqlen}",
            D64.format("bf16")
            + LEARNED.format("rel_bias", "batch, num_heads, seqlen_q, 64")
            + "mask: 0 <= q_idx - kv_idx < 64\n"
            + "score: 'score + rel_bias[b, h, q_idx, q_idx - kv_idx]'\n",
            (3, seqlen, seqlen, 4, 4), relative_bias,
            lambda draw, sizes: {"rel_bias": draw.normal(sizes[0], sizes[3], sizes[1], 64)},
            full=(64, seqlen, seqlen, 64, 64),
        )
        for seqlen in (64, 256)
    ),
    Case(
        "r12", D64.format("bf16") + LEARNED.format("s", "") + "score: score * s\n",
        (1, 700, 700, 1, 1),
        lambda q, k, v, s: attend(scores_of(q, k) * s, TRUE.to(q.device), v),
        lambda draw, sizes: {"s": draw.tensor(1.25, torch.float32)},
        full=(1, 8192, 8192, 1, 1),
    ),
    Case(
        "r13", D64.format("fp16") + LEARNED.format("bias", "num_heads") + "score: 'bias[h]'\n",
        (2, 100, 150, 4, 2),
        lambda q, k, v, bias: attend(
            scores_of(q, k) * 0 + bias.view(1, -1, 1, 1), TRUE.to(q.device), v
        ),
        lambda draw, sizes: {"bias": draw.normal(sizes[3])},
    ),
    Case(
        "r14",
        D64.format("fp16")
        + LEARNED.format("bias", "seqlen_q")
        + "score: 'score + bias[q_idx] + bias[kv_idx]'\n",
        (2, 150, 150, 4, 2),
        lambda q, k, v, bias: attend(scores_of(q, k) + bias[:, None] + bias, TRUE.to(q.device), v),
        lambda draw, sizes: {"bias": draw.normal(sizes[1])},
    ),
    Case(
        "r17", PACKED.format(64, "fp16"), (0, 946, 946, 2, 2), r17,
        offsets(*[[0, 144, 432, 944]] * 2), change=poison_the_tail,
    ),
    Case(
        "r18", D64.format("fp16") + "sink: {per: head, grad: true}\n", (1, 1, 1, 1, 1),
        lambda q, k, v, sink: attend(scores_of(q, k, 1.0), TRUE.to(q.device), v, sink),
        lambda draw, sizes: {"sink": draw.tensor([0.0], torch.float32)}, change=hand_made_r18,
    ),
    Case(
        "r21",
        D64.format("bf16")
        + "captures: {seen: {dims: [seqlen_k], dtype: bool}}\nmask: 'seen[kv_idx]'\n",
        (1, 1, 1000, 1, 1),
        lambda q, k, v, seen: attend(scores_of(q, k), seen, v),
        lambda draw, sizes: {"seen": draw.keep(sizes[2])},
    ),
    Case(
        "r22", PACKED.format(256, "bf16"), (0, 512, 2048, 4, 1), packed,
        lambda draw, sizes: offsets(*([n * sizes[1] // 2048 for n in part] for part in R22))(
            draw, sizes
        ),
        full=(0, 2048, 8192, 4, 1),
    ),
    Case(
        "r29-prefix",
        D64.format("bf16")
        + "captures: {prefix: {dims: [batch], dtype: int32}}\n"
        + "mask: 'kv_idx < prefix[b] or kv_idx <= q_idx + kv_len - q_len'\n",
        (4, 300, 300, 2, 1), prefix_lm,
        lambda draw, sizes: {"prefix": draw.tensor([sizes[1] * n // 9 for n in (0, 2, 7, 9)])},
        full=(4, 1000, 1000, 2, 1),
    ),
    Case(
        "r29-document",
        D64.format("bf16")
        + "causal: true\ncaptures: {doc: {dims: [seqlen_k], dtype: int32}}\n"
        + "mask: 'doc[q_idx] == doc[kv_idx]'\n",
        (1, 300, 300, 2, 1), document_mask,
        lambda draw, sizes: {"doc": documents(draw, sizes)["doc"].to(draw.device)},
        full=(4, 1000, 1000, 2, 1),
    ),
    Case(
        "r30", D64.format("bf16") + "mask: kv_idx >= 128\n", (1, 441, 441, 12, 12),
        lambda q, k, v: attend(scores_of(q, k), grid(q, k)[1] >= 128, v),
    ),
)  # fmt: skip


def scale_of(case: Case) -> float | None:
    return 1.0 if case.name == "r18" else None


def by_formula(case: Case, data: Inputs) -> dict[str, torch.Tensor]:
    """out, lse and every gradient of the case's formula in fp64, by name."""
    tensors = {"q": data.q, "k": data.k, "v": data.v} | dict(data.arguments)
    wanted = ["q", "k", "v"]
    for name, value in tensors.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            tensors[name] = value.double().requires_grad_()
            wanted += [name] if name in data.arguments else []
    out, lse = case.formula(**tensors)
    rows = lse.isfinite()
    seen = rows.transpose(-2, -1).unsqueeze(-1)  # a row that has no key has no gradient to give
    dout = torch.where(seen, data.dout.double(), 0.0)
    loss = (out * dout).sum() + (lse[rows] * data.dlse.double()[rows]).sum()
    grads = torch.autograd.grad(loss, [tensors[n] for n in wanted], materialize_grads=True)
    found = {"out": out.detach(), "lse": lse.detach()}
    return found | {f"d{name}": grad for name, grad in zip(wanted, grads, strict=True)}


def by_kernel(case: Case, kernel, data: Inputs) -> dict[str, torch.Tensor]:
    """out, lse and every gradient of both passes, by name."""
    options = {"softmax_scale": scale_of(case), **data.arguments}
    out, lse, _ = kernel.forward(data.q, data.k, data.v, **options)
    grads = kernel.backward(data.dout, data.q, data.k, data.v, out, lse, dlse=data.dlse, **options)
    found = {"out": out, "lse": lse, "dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
    return found | {f"d{name}": grad for name, grad in grads.captures.items()}
