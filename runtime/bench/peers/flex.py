"""Compiled FlexAttention, with the variant's program as its mask_mod and score_mod."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._functorch.config

from ....generator.ir import Name, walk
from ....generator.program import program_for
from ...captures import signature_of
from ...samples import Inputs
from ..cells import Cell
from .base import Attend, Refusal
from .flex_mods import mask_mod, score_mod

_SMALLEST_HEAD_DIM = 16


class Flex:
    """torch.compile(flex_attention): without a graph break and without a fallback to eager."""

    name = "flex"

    def absent(self, device: torch.device) -> str | None:
        """Compiled kernels with a backward are made by Triton."""
        if device.type != "cuda":
            return "for CUDA devices only"
        return None if importlib.util.find_spec("triton") else "triton isn't installed"

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """A new compilation for each cell; block masks are made beforehand."""
        variant, shape = cell.variant, cell.shape
        if dropout_p:
            raise Refusal("no dropout")
        if variant.sink:
            raise Refusal("no sink")
        if variant.head_dim < _SMALLEST_HEAD_DIM:
            raise Refusal(f"head_dim is {_SMALLEST_HEAD_DIM} at least")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        program = program_for(variant)
        bound = signature_of(variant).bind(data.q, data.k, data.arguments)
        tensors, params = signature_of(variant).named(bound)
        values = tensors | params
        block_mask = None
        if program.mask is not None:
            names = {n.id for n in walk(program.mask) if isinstance(n, Name)}
            block_mask = create_block_mask(
                mask_mod(program, shape, values),
                shape.batch if "b" in names else None,
                shape.num_heads if names & {"h", "h_kv"} else None,
                shape.seqlen_q,
                shape.seqlen_k,
                device=str(data.q.device),
            )
        options: dict[str, Any] = {
            "score_mod": None if program.score is None else score_mod(program, shape, values),
            "block_mask": block_mask,
            "enable_gqa": shape.num_heads != shape.num_heads_kv,
        }
        # what an earlier cell compiled would count towards the recompile limit
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return compiled(q, k, v, **options)

        return Attend(call, True, _settings)


@contextmanager
def _settings() -> Iterator[None]:
    """Where the limit of recompiles is hit, an error in place of eager attention.

    And buffers that a backward may be called twice with: it is timed alone, many times.
    """
    recompiles = torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)
    with recompiles, torch._functorch.config.patch(donated_buffer=False):
        yield
