"""A call for each catalogue variant: sizes at which its mask bites, and captures that test it.

Captures are drawn at random (documents unsorted, counts that repeat), so that nothing depends on
data that happens to be tidy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flashgen.generator.variant import Variant
from flashgen.runtime.arguments import TORCH_DTYPES
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import Inputs
from flashgen.runtime.verify import compare_results


@dataclass(frozen=True)
class Case:
    """Sizes of a call, and what draws its captures and numbers.

    ``lengths`` makes it packed: (queries, keys) of each sequence.
    """

    batch: int = 2
    heads: int = 4
    heads_kv: int = 2
    queries: int = 45
    keys: int = 61
    draw: Callable[[Case, torch.Generator], dict[str, Tensor]] = lambda case, generator: {}
    numbers: dict[str, float] = field(default_factory=dict)
    lengths: tuple[tuple[int, int], ...] = ()
    softmax_scale: float | None = None

    def whole(self, generator: torch.Generator, below: int, *size: int) -> Tensor:
        """int32 below ``below``."""
        return torch.randint(0, below, size, generator=generator).to(torch.int32)


def self_attention(length: int, **more) -> Case:
    return Case(queries=length, keys=length, **more)


def ints(name: str, below: int, *axes: str):
    """Draws one int32 capture whose sizes are fields of the case."""
    return lambda case, g: {name: case.whole(g, below, *(getattr(case, a) for a in axes))}


def normal(name: str, *sizes: int | str, scale: float = 1.0, shift: float = 0.0):
    """Draws one fp32 capture; a size is a number or a field of the case."""

    def draw(case: Case, generator: torch.Generator) -> dict[str, Tensor]:
        shape = [getattr(case, size) if isinstance(size, str) else size for size in sizes]
        return {name: torch.randn(shape, generator=generator) * scale + shift}

    return draw


def uniform(low: float, high: float, *names: str):
    """Draws fp32 captures with one value for each head."""
    return lambda case, g: {
        name: torch.rand(case.heads, generator=g) * (high - low) + low for name in names
    }


def _global(case, generator):
    return {"is_global": torch.rand(case.batch, case.keys, generator=generator) < 0.01}


def _ancestors(case, generator):
    """Each token's ancestors in a random tree, and itself."""
    seen = torch.eye(case.queries, dtype=torch.bool)
    for token in range(1, case.queries):
        parent = int(torch.randint(0, token, (), generator=generator))
        seen[token] |= seen[parent]
    return {"ancestor": seen}


def _blocks(case, generator):
    size = case.batch, case.heads, -(-case.queries // 64), -(-case.keys // 64)
    return {"block_mask": torch.rand(size, generator=generator) < 0.4}


def _graph(case, generator):
    size = (case.batch, case.queries, case.keys)
    bias = torch.randn(41, case.heads, generator=generator)
    return {"path": case.whole(generator, 60, *size), "bias": bias}


def _decay(case, generator):
    gates = torch.randn(case.batch, case.heads, case.keys, generator=generator)
    return {"decay": torch.nn.functional.logsigmoid(gates + 2).cumsum(-1)}


CASES: dict[str, Case] = {
    "top-left": Case(),
    "sliding-window": Case(numbers={"window_left": 9, "window_right": 3}),
    "dilated": Case(queries=290, keys=301),
    "strided": Case(queries=290, keys=301),
    "prefix-lm": Case(batch=4, draw=ints("prefix", 60, "batch")),
    "padding": Case(batch=4, draw=ints("lengths", 60, "batch")),
    "document": self_attention(150, draw=ints("doc", 4, "batch", "keys")),
    "document-causal": self_attention(150, draw=ints("doc", 4, "batch", "keys")),
    "dynamic-chunk": Case(queries=50, keys=61, numbers={"chunk": 16}),
    "longformer": self_attention(600, heads=2, heads_kv=1, draw=_global),
    "streaming": Case(heads=2, heads_kv=1, queries=40, keys=1100),
    "neighborhood": self_attention(9 * 12, numbers={"width": 12}),
    "block-diffusion": self_attention(96),
    "shared-prefix": self_attention(150, draw=ints("answer", 4, "batch", "keys")),
    "transfusion": self_attention(150, draw=ints("image", 4, "batch", "keys")),
    "flamingo": Case(queries=70, keys=4 * 64, draw=ints("images", 5, "batch", "queries")),
    "tree": Case(queries=40, keys=77, draw=_ancestors),
    "block-sparse": Case(queries=200, keys=300, draw=_blocks),
    "packed": Case(lengths=((5, 5), (0, 3), (70, 131), (33, 0), (20, 9), (1, 1))),
    "mistral": Case(batch=1, heads=2, heads_kv=1, queries=40, keys=4130),
    "gemma2-local": Case(batch=1, heads=2, heads_kv=1, queries=40, keys=4130),
    "gemma2-global": Case(),
    "gpt-oss-local": Case(queries=150, keys=170, draw=uniform(-1, 3, "sink")),
    "gpt-oss-global": Case(queries=61, keys=45, draw=uniform(-1, 3, "sink")),
    "llama4": Case(batch=1, heads=2, heads_kv=1, queries=40, keys=8210),
    "modernbert": Case(lengths=((90, 90), (0, 0), (1, 1), (171, 171))),
    "alibi": Case(draw=uniform(0.01, 0.5, "alibi_slopes")),
    "softcap": Case(numbers={"softcap": 2.5}),
    "t5": Case(queries=200, keys=230, draw=normal("bias", 32, "heads"), softmax_scale=0.2),
    "relative-bias": Case(queries=150, keys=190, draw=normal("table", "heads", 129)),
    "relative-product": Case(queries=150, keys=190, draw=normal("table", "heads", 257, shift=1)),
    "swin": self_attention(49, draw=normal("bias", 13, 13, "heads")),
    "pair-bias": Case(draw=normal("bias", "batch", "heads", "queries", "keys")),
    "graphormer": Case(draw=_graph),
    "temperature": self_attention(70, draw=uniform(4, 12, "temperature"), softmax_scale=1.0),
    "ssmax": Case(queries=61, keys=45, draw=uniform(0.2, 0.6, "s")),
    "kerple": Case(draw=uniform(0.2, 2, "r1", "r2")),
    "forgetting": self_attention(150, draw=_decay),
}
"""The name of a spec with language features -> its call."""


def call_of(case: Case, variant: Variant, dtype: torch.dtype, device: str = "cpu") -> Inputs:
    """Random tensors for ``case``, the same each time; captures and numbers are its arguments."""
    generator = torch.Generator().manual_seed(7)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    lead_q: tuple[int, ...] = (case.batch, case.queries)
    lead_k: tuple[int, ...] = (case.batch, case.keys)
    lead_lse: tuple[int, ...] = (case.batch, case.heads, case.queries)
    arguments: dict[str, Any] = case.draw(case, generator) | case.numbers
    if case.lengths:
        for name, side in (("cu_seqlens_q", 0), ("cu_seqlens_k", 1)):
            ends = torch.tensor([0] + [pair[side] for pair in case.lengths]).cumsum(0)
            arguments[name] = ends.to(torch.int32)
        lead_q, lead_k = (sum(n for n, _ in case.lengths),), (sum(n for _, n in case.lengths),)
        lead_lse = (case.heads, *lead_q)
    # where the call's scale isn't 1 / sqrt(head_dim), q and k make up for it
    size = variant.head_dim
    shrink = 1.0 if case.softmax_scale is None else size**-0.25 / case.softmax_scale**0.5
    parts = (
        normal(*lead_q, case.heads, size) * shrink,
        normal(*lead_k, case.heads_kv, size) * shrink,
        normal(*lead_k, case.heads_kv, variant.head_dim_v),
        normal(*lead_q, case.heads, variant.head_dim_v),
    )
    q, k, v, dout = (part.to(device=device, dtype=dtype) for part in parts)
    stats = torch.promote_types(dtype, torch.float32)
    dlse = normal(*lead_lse).to(device=device, dtype=stats)
    moved = {n: a.to(device) if isinstance(a, Tensor) else a for n, a in arguments.items()}
    return Inputs(q, k, v, dout, dlse, moved)


def check_kernel(kernel: Kernel, case: Case, device: str, *, backward: bool) -> None:
    """Asserts the error rule for every result of one call of ``case``."""
    variant, scale = kernel.variant, case.softmax_scale
    data = call_of(case, variant, TORCH_DTYPES[variant.dtype], device)
    out, lse, _ = kernel.forward(data.q, data.k, data.v, softmax_scale=scale, **data.arguments)
    ours = {"out": out, "lse": lse}
    if backward:
        grads = kernel.backward(
            data.dout, data.q, data.k, data.v, out, lse,
            dlse=data.dlse, softmax_scale=scale, **data.arguments,
        )  # fmt: skip
        ours |= {"dq": grads.dq, "dk": grads.dk, "dv": grads.dv}
        ours |= {f"d{name}": grad for name, grad in grads.captures.items()}
    found = compare_results(variant, data, ours, softmax_scale=scale)
    wrong = [f"{kernel.key} {n}: {c}" for n, c in found.items() if not c.ok]
    assert not wrong, "\n".join(wrong)
