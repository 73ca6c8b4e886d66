"""torch.nn.functional.scaled_dot_product_attention, one backend at a time."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ...samples import Inputs
from ..cells import Cell
from .base import Attend, Refusal, plain_only

_GPU_ONLY = ("CUDNN_ATTENTION", "EFFICIENT_ATTENTION")


@dataclass(frozen=True)
class Sdpa:
    """One backend, pinned: where it can't run torch raises, so no other takes its place."""

    name: str
    backend: str

    def absent(self, device: torch.device) -> str | None:
        """Some backends are for GPUs alone."""
        if device.type != "cuda" and self.backend in _GPU_ONLY:
            return "for CUDA devices only"
        return None

    def attend(self, cell: Cell, data: Inputs, dropout_p: float) -> Attend:
        """The backend, once a first call has shown that it takes such a cell."""
        plain_only(cell)
        grouped = cell.shape.num_heads != cell.shape.num_heads_kv
        function = partial(
            scaled_dot_product_attention,
            is_causal=bool(cell.variant.causal), dropout_p=dropout_p, enable_gqa=grouped,
        )  # fmt: skip
        leaves = (t.transpose(1, 2).detach().requires_grad_() for t in (data.q, data.k, data.v))
        with warnings.catch_warnings(record=True) as caught, self._pinned():
            warnings.simplefilter("always")  # torch warns of each reason why a backend won't do
            try:
                function(*leaves)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                raise Refusal(_reasons(caught)) from None
        return Attend(function, True, self._pinned)

    def _pinned(self) -> AbstractContextManager[object]:
        return sdpa_kernel(getattr(SDPBackend, self.backend))


def _reasons(caught: Sequence[warnings.WarningMessage]) -> str:
    """Torch's warnings in one line, without headings such as ``Flash attention not used:``."""
    texts = [str(w.message).split(" (Triggered")[0].strip() for w in caught]
    told = [text.rstrip(".") for text in texts if not text.endswith(":")]
    return "; ".join(told) or "no kernel of this backend for the cell"
