"""Variant + sizes -> random tensors and numbers of one call, captures and params among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from ..generator.body import Param
from ..generator.ir import Binary, Call, Expr, Load, walk
from ..generator.program import Program, ProgramCapture, program_for
from ..generator.variant import Variant
from .arguments import TORCH_DTYPES, lse_dtype, lse_shape
from .captures import CAPTURE_DTYPES, signature_of

_POSITIVE_ONLY = ("log", "log2", "sqrt", "rsqrt")
_SEQUENCE_AXES = ("seqlen_q", "seqlen_k", "total_q", "total_k")
_TAIL_ROWS = 3  # packed rows behind the last sequence
_INT_PARAM, _FLOAT_PARAM = 16, 2.5
_SOFTCAP = 5.0  # near the spread of the scores, so that it bends them


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one call; of packed sequences, the longest."""

    batch: int
    num_heads: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_k: int


@dataclass(frozen=True, eq=False, slots=True)
class Inputs:
    """Random tensors of one call, dout and dlse among them.

    Attributes:
        q: as the call's; k and v too.
        k: likewise.
        v: likewise.
        dout: gradient of out.
        dlse: gradient of lse.
        arguments: keyword arguments that the variant has by its spec.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor
    arguments: Mapping[str, Any] = field(default_factory=dict)


def random_inputs(
    variant: Variant, shape: Shape, device: torch.device | str, seed: int = 0, factor: float = 1.0
) -> Inputs:
    """Normal q, k, v, dout, dlse times ``factor``, and arguments that suit the variant's program.

    The same for the same ``seed`` on the same device. Where queries and keys share a capture,
    there are as many queries as keys. Packed calls have ``shape.batch`` sequences and two empty
    sides more, and rows behind the last one.

    Of captures, floats are normal, but in [0.5, 1.5) where a logarithm, a root or a division
    reads them. Ints along one sequence axis are ids that never decrease, as of documents; along
    two, anything in [0, 64), as of distances; along none, anything in [0, seqlen_k], as of
    lengths. Bools are true half of the time. Params that are ints are 16, floats 2.5, a softcap
    5; a window's sides are a third and an eighth of the keys.
    """
    generator = torch.Generator(device).manual_seed(seed)
    draw = _Draw(generator, torch.device(device))
    dtype = TORCH_DTYPES[variant.dtype]
    seqlen_q, seqlen_k = shape.seqlen_q, shape.seqlen_k
    if signature_of(variant).paired:
        seqlen_q = seqlen_k
    rows: tuple[int, ...] = (shape.batch, seqlen_q)
    columns: tuple[int, ...] = (shape.batch, seqlen_k)
    arguments: dict[str, Any] = {}
    batch = shape.batch
    if variant.layout == "varlen":
        starts = _starts(variant, shape.batch, seqlen_q, seqlen_k)
        batch = len(starts[0]) - 1
        rows, columns = ((s[-1] + _TAIL_ROWS,) for s in starts)
        for name, values in zip(("cu_seqlens_q", "cu_seqlens_k"), starts, strict=True):
            arguments[name] = torch.tensor(values, dtype=torch.int32, device=device)
    q = draw.normal(*rows, shape.num_heads, variant.head_dim) * factor
    k = draw.normal(*columns, shape.num_heads_kv, variant.head_dim) * factor
    v = draw.normal(*columns, shape.num_heads_kv, variant.head_dim_v) * factor
    dout = draw.normal(*rows, shape.num_heads, variant.head_dim_v) * factor
    dlse = draw.normal(*lse_shape(q.shape)) * factor
    sizes: dict[str | int, int] = {
        "batch": batch,
        "num_heads": shape.num_heads,
        "num_heads_kv": shape.num_heads_kv,
        "seqlen_q": seqlen_q,
        "seqlen_k": seqlen_k,
        "total_q": rows[-1],
        "total_k": columns[-1],
    }
    if variant.sink:
        arguments["sink"] = draw.normal(shape.num_heads)
    arguments |= _program_arguments(program_for(variant), sizes, draw)
    q, k, v, dout = (t.to(dtype) for t in (q, k, v, dout))
    return Inputs(q, k, v, dout, dlse.to(lse_dtype(dtype)), arguments)


def _starts(
    variant: Variant, count: int, seqlen_q: int, seqlen_k: int
) -> tuple[list[int], list[int]]:
    """Offsets of packed sequences: full ones, and two with queries or keys alone, or nothing."""
    lengths = [(max(1, seqlen_q >> i), max(1, seqlen_k >> i)) for i in range(count)]
    if signature_of(variant).paired:
        lengths[1:1] = [(0, 0), (0, 0)]
    else:
        lengths[1:1] = [(0, seqlen_k // 2), (seqlen_q // 2, 0)]
    queries, keys = zip(*lengths, strict=True)
    return list(accumulate(queries, initial=0)), list(accumulate(keys, initial=0))


@dataclass(frozen=True, eq=False, slots=True)
class _Draw:
    """Random tensors of one generator."""

    generator: torch.Generator
    device: torch.device

    def normal(self, *size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.generator, device=self.device)

    def uniform(self, size: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(size, generator=self.generator, device=self.device)

    def ints(self, size: tuple[int, ...], high: int) -> torch.Tensor:
        return torch.randint(0, high, size, generator=self.generator, device=self.device)


def _program_arguments(
    program: Program, sizes: dict[str | int, int], draw: _Draw
) -> Iterator[tuple[str, Any]]:
    positive = set(_read_as_positive(program))
    for capture in program.captures:
        yield capture.name, _capture(capture, capture.name in positive, sizes, draw)
    for param in program.params:
        yield param.name, _param(param, sizes)


def _capture(
    capture: ProgramCapture, positive: bool, sizes: dict[str | int, int], draw: _Draw
) -> torch.Tensor:
    dtype = CAPTURE_DTYPES[capture.dtype]
    if capture.block is not None:
        blocks = (-(-sizes[f"seqlen_{s}"] // b) for s, b in zip("qk", capture.block, strict=True))
        return draw.uniform((sizes["batch"], sizes["num_heads"], *blocks)) < 0.5
    size = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in capture.dims)
    if dtype == torch.bool:
        return draw.uniform(size) < 0.5
    if dtype.is_floating_point:
        if positive or capture.name == "alibi_slopes":
            return (0.5 + draw.uniform(size)).to(dtype)
        return draw.normal(*size).to(dtype)
    axes = [i for i, dim in enumerate(capture.dims) if dim in _SEQUENCE_AXES]
    if len(axes) == 1:
        return (draw.uniform(size) < 8 / max(8, size[axes[0]])).cumsum(axes[0]).to(dtype)
    high = 64 if axes else sizes["seqlen_k"] + 1
    return draw.ints(size, high).to(dtype)


def _param(param: Param, sizes: dict[str | int, int]) -> int | float:
    if param.name.startswith("window_"):
        return sizes["seqlen_k"] // (3 if param.name == "window_left" else 8)
    if param.name == "softcap":
        return _SOFTCAP
    return _INT_PARAM if param.type == "int" else _FLOAT_PARAM


def _read_as_positive(program: Program) -> Iterator[str]:
    """Captures that a logarithm, a root or a divisor is made of."""
    for node in () if program.score is None else walk(program.score):
        operands: tuple[Expr, ...] = ()
        if isinstance(node, Call) and node.function in _POSITIVE_ONLY:
            operands = node.args
        elif isinstance(node, Binary) and node.op == "/":
            operands = (node.right,)
        for inner in walk(*operands):
            if isinstance(inner, Load):
                yield inner.capture
