"""Attention as five torch operations: matmul, mask, softmax, dropout, matmul."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import dropout

from ...samples import Inputs
from ..cells import Cell
from .base import Attend, plain_only


class Eager:
    """What a model has that calls no fused attention: it keeps seqlen_q * seqlen_k scores."""

    name = "eager"

    def absent(self, device: torch.device) -> str | None:
        """It is always there."""
        return None

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """The five operations; the mask of a causal cell is made beforehand."""
        plain_only(cell)
        shape, variant = cell.shape, cell.variant
        group = shape.num_heads // shape.num_heads_kv
        scale = 1 / math.sqrt(variant.head_dim)
        hidden: dict[torch.device, torch.Tensor] = {}

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if group > 1:
                k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
            scores = q @ k.transpose(-2, -1) * scale
            if variant.causal:
                if q.device not in hidden:
                    square = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
                    hidden[q.device] = square.triu(1)
                scores = scores.masked_fill(hidden[q.device], -math.inf)
            weights = scores.softmax(-1)
            if dropout_p:
                weights = dropout(weights, dropout_p)
            return weights @ v

        return Attend(call, True)
