"""Each catalogue variant's score and mask as its paper has it, by hand, in plain torch.

Nothing here knows the spec files or flashgen's expressions: that is what makes a comparison of
the two a test. A formula takes dense scores and gives dense scores and what is visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Dense:
    """One sequence's or batch's dense problem.

    ``s`` is (batch, heads, queries, keys), scaled; ``b``, ``h``, ``i`` and ``j`` are its indices,
    shaped to broadcast; ``p`` is where query i stands among the keys when both end together.
    """

    s: Tensor
    tensors: dict[str, Tensor]
    numbers: dict[str, float]

    @property
    def queries(self) -> int:
        return self.s.shape[2]

    @property
    def keys(self) -> int:
        return self.s.shape[3]

    def _axis(self, axis: int) -> Tensor:
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        return torch.arange(self.s.shape[axis], device=self.s.device).view(shape)

    b = property(lambda self: self._axis(0))
    h = property(lambda self: self._axis(1))
    i = property(lambda self: self._axis(2))
    j = property(lambda self: self._axis(3))
    p = property(lambda self: self.i + self.keys - self.queries)


Formula = Callable[[Dense], tuple[Tensor, Tensor | bool]]
FORMULAS: dict[str, Formula] = {}
"""The name of a spec -> its formula."""


def formula(name: str) -> Callable[[Formula], Formula]:
    def note(function: Formula) -> Formula:
        assert name not in FORMULAS
        FORMULAS[name] = function
        return function

    return note


# ---- masks ----


@formula("top-left")
def top_left(x):
    return x.s, torch.ones(x.queries, x.keys, dtype=torch.bool, device=x.s.device).tril()


@formula("sliding-window")
def sliding_window(x):
    visible = x.j == x.j
    if x.numbers["window_left"] is not None:
        visible = visible & (x.p - x.j <= x.numbers["window_left"])
    if x.numbers["window_right"] is not None:
        visible = visible & (x.j - x.p <= x.numbers["window_right"])
    return x.s, visible


@formula("dilated")
def dilated(x):
    steps = torch.arange(64, device=x.s.device) * 4  # 64 keys, every 4th
    return x.s, ((x.p - x.j).unsqueeze(-1) == steps).any(-1)


@formula("strided")
def strided(x):
    recent = (x.j > x.p - 128) & (x.j <= x.p)
    column = (x.j <= x.p) & ((x.p - x.j).remainder(128) == 0)
    return x.s, recent | column


@formula("prefix-lm")
def prefix_lm(x):
    prompt = x.j < x.tensors["prefix"].view(-1, 1, 1, 1)
    return x.s, prompt | (x.j <= x.p)


@formula("padding")
def padding(x):
    return x.s, x.j < x.tensors["lengths"].view(-1, 1, 1, 1)


def _same(numbers: Tensor) -> Tensor:
    return numbers[:, None, :, None] == numbers[:, None, None, :]


@formula("document")
def document(x):
    return x.s, _same(x.tensors["doc"])


@formula("document-causal")
def document_causal(x):
    return x.s, _same(x.tensors["doc"]) & (x.j <= x.i)


@formula("dynamic-chunk")
def dynamic_chunk(x):
    end_of_chunk = (x.i.div(x.numbers["chunk"], rounding_mode="floor") + 1) * x.numbers["chunk"]
    return x.s, x.j < end_of_chunk


@formula("longformer")
def longformer(x):
    marked = x.tensors["is_global"]
    near = (x.i - x.j).abs() <= 256
    return x.s, near | marked[:, None, :, None] | marked[:, None, None, :]


@formula("streaming")
def streaming(x):
    return x.s, (x.j <= x.p) & ((x.j < 4) | (x.j > x.p - 1020))


def _neighborhood_1d(size: int, kernel: int) -> Tensor:
    """[a, c]: whether position a sees position c, by counting out the kernel's places."""
    seen = torch.zeros(size, size, dtype=torch.bool)
    for a in range(size):
        start = min(max(a - kernel // 2, 0), size - kernel)
        seen[a, start : start + kernel] = True
    return seen


@formula("neighborhood")
def neighborhood(x):
    width = int(x.numbers["width"])
    rows, columns = _neighborhood_1d(x.queries // width, 7), _neighborhood_1d(width, 7)
    seen = torch.einsum("ac,bd->abcd", rows.long(), columns.long()) > 0
    return x.s, seen.reshape(x.queries, x.keys).to(x.s.device)


@formula("block-diffusion")
def block_diffusion(x):
    half, size = x.queries // 2, 16
    blocks = torch.arange(half, device=x.s.device) // size
    own = blocks[:, None] == blocks[None, :]
    before = blocks[:, None] > blocks[None, :]
    upper = torch.cat([own, before], 1)  # noisy: its own noisy block, clean ones before
    lower = torch.cat([torch.zeros_like(own), own | before], 1)
    return x.s, torch.cat([upper, lower], 0)


@formula("shared-prefix")
def shared_prefix(x):
    answer = x.tensors["answer"]
    prompt = (answer == 0)[:, None, None, :]
    return x.s, (x.j <= x.i) & (prompt | _same(answer))


@formula("transfusion")
def transfusion(x):
    image = x.tensors["image"]
    patch = (image > 0)[:, None, :, None]
    return x.s, (x.j <= x.i) | (patch & _same(image))


@formula("flamingo")
def flamingo(x):
    last = x.tensors["images"][:, None, :, None]
    first_key = (last - 1) * 64
    return x.s, (last > 0) & (x.j >= first_key) & (x.j < first_key + 64)


@formula("tree")
def tree(x):
    cache = x.keys - x.queries
    whole = torch.ones(x.queries, cache, dtype=torch.bool, device=x.s.device)
    return x.s, torch.cat([whole, x.tensors["ancestor"]], 1)


@formula("block-sparse")
def block_sparse(x):
    blocks = x.tensors["block_mask"].repeat_interleave(64, 2).repeat_interleave(64, 3)
    return x.s, blocks[:, :, : x.queries, : x.keys]


@formula("packed")
def packed(x):
    return x.s, x.j <= x.p


# ---- models ----


@formula("mistral")
def mistral(x):
    return x.s, (x.j <= x.p) & (x.j > x.p - 4096)


@formula("gemma2-local")
def gemma2_local(x):
    return 50 * torch.tanh(x.s / 50), (x.j <= x.p) & (x.j > x.p - 4096)


@formula("gemma2-global")
def gemma2_global(x):
    return 50 * torch.tanh(x.s / 50), x.j <= x.p


@formula("gpt-oss-local")
def gpt_oss_local(x):
    return x.s, (x.j <= x.p) & (x.j > x.p - 128)


@formula("gpt-oss-global")
def gpt_oss_global(x):
    return x.s, x.j <= x.p


@formula("llama4")
def llama4(x):
    start_of_chunk = x.p - x.p.remainder(8192)
    return x.s, (x.j <= x.p) & (x.j >= start_of_chunk)


@formula("modernbert")
def modernbert(x):
    return x.s, (x.j - x.p).abs() <= 64


# ---- scores ----


@formula("alibi")
def alibi(x):
    slopes = x.tensors["alibi_slopes"].double()
    slopes = slopes.view(1, -1, 1, 1) if slopes.dim() == 1 else slopes[:, :, None, None]
    return x.s - slopes * (x.p - x.j).abs(), x.j <= x.p


@formula("softcap")
def softcap(x):
    cap = x.numbers["softcap"]
    return cap * torch.tanh(x.s / cap), x.j <= x.p


def t5_bucket(offset: int) -> int:
    """The bucket of key - query: T5's log, on whole numbers so that no rounding decides."""
    side, distance = (16 if offset > 0 else 0), abs(offset)
    if distance < 8:
        return side + distance
    # floor(8 * log(distance / 8) / log(128 / 8)) = the largest n: (distance / 8)**8 >= 16**n
    steps = max(n for n in range(8) if distance**8 >= 8**8 * 16**n)
    return side + 8 + steps


@formula("t5")
def t5(x):
    bucket = torch.tensor([[t5_bucket(j - i) for j in range(x.keys)] for i in range(x.queries)])
    bias = x.tensors["bias"].double()[bucket.to(x.s.device)]  # (queries, keys, heads)
    return x.s + bias.permute(2, 0, 1), True


@formula("relative-bias")
def relative_bias(x):
    distance = (x.p - x.j).clamp(0, 128)[0, 0]
    return x.s + x.tensors["table"].double()[:, distance], x.j <= x.p


@formula("relative-product")
def relative_product(x):
    offset = (x.j - x.i).clamp(-128, 128)[0, 0] + 128
    return x.s * x.tensors["table"].double()[:, offset], True


@formula("swin")
def swin(x):
    place = torch.arange(x.queries, device=x.s.device)
    rows, columns = place.div(7, rounding_mode="floor"), place.remainder(7)
    down = rows[:, None] - rows[None, :] + 6
    across = columns[:, None] - columns[None, :] + 6
    return x.s + x.tensors["bias"].double()[down, across].permute(2, 0, 1), True


@formula("pair-bias")
def pair_bias(x):
    return x.s + x.tensors["bias"].double(), True


@formula("graphormer")
def graphormer(x):
    steps = x.tensors["path"].long().clamp(max=40)
    return x.s + x.tensors["bias"].double()[steps].permute(0, 3, 1, 2), True


@formula("temperature")
def temperature(x):
    itself = torch.eye(x.queries, x.keys, dtype=torch.bool, device=x.s.device)
    return x.s / x.tensors["temperature"].double().view(1, -1, 1, 1), ~itself


@formula("ssmax")
def ssmax(x):
    keys = (x.j <= x.p).sum(-1, keepdim=True)
    factor = x.tensors["s"].double().view(1, -1, 1, 1) * keys.clamp(min=1).double().log()
    return x.s * factor, x.j <= x.p


@formula("kerple")
def kerple(x):
    r1, r2 = (x.tensors[name].double().view(1, -1, 1, 1) for name in ("r1", "r2"))
    return x.s - r1 * torch.log1p(r2 * (x.p - x.j).abs()), x.j <= x.p


@formula("forgetting")
def forgetting(x):
    decay = x.tensors["decay"].double()
    return x.s + decay[:, :, :, None] - decay[:, :, None, :], x.j <= x.i


# ---- attention itself ----


def attend(
    formula: Formula,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: dict[str, Tensor],
    numbers: dict[str, float],
    softmax_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of dense attention with ``formula``, differentiable; "sink" is in ``tensors``.

    Shapes as everywhere: (batch, seqlen, heads, head_dim). A row that sees nothing has out 0; its
    lse is the sink's logit, or -inf without one.
    """
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = 1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    scores, visible = formula(Dense(scores, tensors, numbers))
    visible = torch.as_tensor(visible, device=q.device).expand(scores.shape)
    sink = tensors.get("sink")
    sink = None if sink is None else sink.double().view(1, -1, 1, 1)
    hidden = scores.new_full((*scores.shape[:-1], 1), -math.inf)  # so that no row is empty
    top = torch.cat([scores.detach().masked_fill(~visible, -math.inf), hidden], -1)
    top = top.amax(-1, keepdim=True)
    top = top if sink is None else torch.maximum(top, sink.detach())
    top = torch.where(top.isinf(), 0.0, top)
    weights = torch.where(visible, torch.exp(torch.where(visible, scores, top) - top), 0.0)
    total = weights.sum(-1, keepdim=True)
    total = total if sink is None else total + torch.exp(sink - top)
    some = total > 0
    safe = torch.where(some, total, 1.0)
    out = torch.einsum("bhij,bjhd->bihd", weights / safe, v)
    lse = torch.where(some, safe.log() + top, -math.inf).squeeze(-1)
    return out, lse
