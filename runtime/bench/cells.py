"""What is asked for -> Cells: one attention problem each, with its FLOPs and its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...generator.errors import ArgumentError
from ...generator.program import program_for
from ...generator.spec import Spec
from ...generator.variant import Variant
from ..captures import CAPTURE_DTYPES
from ..catalogue import CatalogueEntry
from ..samples import Inputs, Shape, random_inputs

PASSES = ("forward", "recorded", "backward", "step")
"""``recorded`` is a forward that autograd records, ``step`` that and its backward."""
FLOPS_FACTOR = {"forward": 1.0, "recorded": 1.0, "backward": 2.5, "step": 3.5}
"""Of two products' FLOPs; the backward has five. Recomputing more of them earns nothing."""
DIMS = (64, 128, 256)
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS, HIDDEN = 16_384, 2_048
SPAN = 1024
_SEQUENCE_AXES = ("seqlen_q", "seqlen_k")


@dataclass(frozen=True, slots=True)
class Cell:
    """One problem to time.

    Attributes:
        variant: the function.
        shape: sizes of the call.
        dropout_p: probability of dropping an element; 0 where the variant has no dropout.
        span: keys of a window, tokens of a document and of a prefix, where the call gives them.
        spec: where it comes from, for its pins; None for none.
    """

    variant: Variant
    shape: Shape
    dropout_p: float = 0.0
    span: int = SPAN
    spec: Spec | None = None

    @property
    def label(self) -> str:
        """The key, or the name of a spec whose key ends in a hash."""
        named = self.spec is not None and self.variant.body is not None
        return self.spec.name if named and self.spec is not None else self.variant.key

    def flops(self, pass_name: str) -> float | None:
        """Floating-point operations that a pass must do; None where the mask doesn't say.

        4 * batch * num_heads * seqlen_q * seqlen_k * head_dim forward, half of it when causal,
        and 2.5 times as many backward, as FlashAttention counts them. A window counts the keys
        that it shows.
        """
        share = self._visible_share()
        if share is None:
            return None
        shape, columns = self.shape, self.variant.head_dim + self.variant.head_dim_v
        pairs = shape.batch * shape.num_heads * shape.seqlen_q * shape.seqlen_k * share
        return 2.0 * pairs * columns * FLOPS_FACTOR[pass_name]

    def inputs(self, device: torch.device, seed: int) -> Inputs:
        """Random tensors of one call, another set for each ``seed``.

        Of captures, int ones along a sequence number documents of ``span`` tokens and others
        are ``span``; a window shows ``span`` keys before the query; ALiBi's slopes are those of
        its paper. What else there is is random.
        """
        data = random_inputs(self.variant, self.shape, device, seed)
        return replace(data, arguments={**data.arguments, **self._arguments(device)})

    def _arguments(self, device: torch.device) -> dict[str, Any]:
        sizes = {
            axis: getattr(self.shape, axis) for axis in ("batch", "num_heads", *_SEQUENCE_AXES)
        }
        sizes["num_heads_kv"] = self.shape.num_heads_kv
        found: dict[str, Any] = {}
        program = program_for(self.variant)
        for capture in program.captures:
            if capture.name == "alibi_slopes":
                heads = torch.arange(1, self.shape.num_heads + 1, device=device)
                found[capture.name] = torch.exp2(-8.0 * heads / self.shape.num_heads)
            if capture.block is not None or not capture.dtype.startswith("int"):
                continue
            axes = [i for i, dim in enumerate(capture.dims) if dim in _SEQUENCE_AXES]
            size = tuple(sizes[d] if isinstance(d, str) else d for d in capture.dims)
            if len(axes) > 1:
                continue
            values = torch.full(size, self.span, device=device)
            if axes:
                places = torch.arange(size[axes[0]], device=device) // self.span
                view = [-1 if i == axes[0] else 1 for i in range(len(size))]
                values = places.view(view).expand(size)
            found[capture.name] = values.to(CAPTURE_DTYPES[capture.dtype]).contiguous()
        for param in program.params:
            if param.name == "window_left":
                found |= {"window_left": self.span, "window_right": 0}
        return found

    def _visible_share(self) -> float | None:
        variant, shape = self.variant, self.shape
        if variant.block_mask is not None or (variant.body and variant.body.mask is not None):
            return None
        window = variant.window
        if window is None and not variant.causal:
            return 1.0
        if window is None and shape.seqlen_q == shape.seqlen_k:
            return 0.5
        left, right = (None, None) if window is None else (window.left, window.right)
        if window is not None and window.runtime:
            left, right = self.span, 0
        if variant.causal:
            right = 0
        place = torch.arange(shape.seqlen_q)
        if variant.causal != "top_left" or window is not None:
            place = place + shape.seqlen_k - shape.seqlen_q
        first = torch.zeros_like(place) if left is None else (place - left).clamp(min=0)
        last = torch.full_like(place, shape.seqlen_k - 1) if right is None else place + right
        seen = (last.clamp(max=shape.seqlen_k - 1) - first + 1).clamp(min=0).sum().item()
        return float(seen / (shape.seqlen_q * shape.seqlen_k))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a cell's shape follows from its sequence length.

    Attributes:
        tokens: batch * seqlen, where ``batch`` is None.
        hidden: num_heads * head_dim, where ``num_heads`` is None.
        batch: of every cell; None follows from tokens.
        num_heads: of every cell; None follows from hidden.
        num_heads_kv: heads of keys and values; None for num_heads.
    """

    tokens: int = TOKENS
    hidden: int = HIDDEN
    batch: int | None = None
    num_heads: int | None = None
    num_heads_kv: int | None = None

    def shape(self, head_dim: int, seqlen: int) -> Shape:
        """The shape of a call of ``seqlen`` queries and keys.

        Raises:
            ArgumentError: when num_heads is no multiple of num_heads_kv.
        """
        batch = max(1, self.tokens // seqlen) if self.batch is None else self.batch
        heads = max(1, self.hidden // head_dim) if self.num_heads is None else self.num_heads
        heads_kv = self.num_heads_kv or heads
        if heads % heads_kv:
            raise ArgumentError(
                f"bench: --heads-kv: expected a divisor of the {heads} heads of head_dim "
                f"{head_dim}, got {heads_kv}. Give --heads too."
            )
        return Shape(batch, heads, heads_kv, seqlen, seqlen)


def sweep_variants(
    dims: Iterable[int], dtype: str, causal: Sequence[bool], dropout: bool, deterministic: bool
) -> list[Variant]:
    """The variants of a sweep over head sizes and the causal mask."""
    return [
        Variant(dim, dim, dtype, mask, 8 if dropout else 0, deterministic)
        for dim in dims
        for mask in causal
    ]


def cells_of(
    entries: Iterable[CatalogueEntry | Variant],
    seqlens: Iterable[int],
    sizes: Sizes,
    dropout_p: float,
    span: int = SPAN,
) -> list[Cell]:
    """A cell for each variant and sequence length.

    Raises:
        ArgumentError: for packed layouts, which aren't timed, or heads that don't divide.
    """
    cells = []
    for entry in entries:
        variant = entry if isinstance(entry, Variant) else entry.variant
        if variant.layout != "dense":
            raise ArgumentError(
                f"bench: {variant.key}: expected layout dense, got {variant.layout}. Time the "
                "dense variant of the same function."
            )
        spec = None if isinstance(entry, Variant) else entry.spec
        p = dropout_p if variant.dropout else 0.0
        cells += [
            Cell(variant, sizes.shape(variant.head_dim, seqlen), p, span, spec)
            for seqlen in seqlens
        ]
    return cells
