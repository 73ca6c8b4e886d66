"""Variant: one attention function, frozen and canonical, and its key."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import SpecError

DTYPES = ("fp16", "bf16", "fp32", "fp64")
PASSES = ("forward", "backward")
PASS_PREFIX = {"forward": "fwd", "backward": "bwd"}
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """One attention function. Everything that changes its result is a field, and is in its key.

    Attributes:
        head_dim: size of a query and key row, in elements; a multiple of 8 up to 256.
        head_dim_v: size of a value and output row, likewise.
        dtype: of q, k, v, out and their gradients: fp16, bf16, fp32 or fp64.
        causal: query i sees keys up to i + seqlen_k - seqlen_q (bottom-right aligned).
        dropout_bits: 0 without dropout, else the random bits spent on an element (8 or 16).
        deterministic: every gradient is bitwise reproducible.
    """

    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool = False
    dropout_bits: int = 0
    deterministic: bool = False

    @property
    def dropout(self) -> bool:
        """Whether dropout is compiled in."""
        return self.dropout_bits > 0

    @property
    def key(self) -> str:
        """The readable, stable, complete name, such as ``d128v64-bf16-causal-dropout-det``."""
        size = f"d{self.head_dim}"
        if self.head_dim_v != self.head_dim:
            size += f"v{self.head_dim_v}"
        parts = [size, self.dtype]
        if self.causal:
            parts.append("causal")
        if self.dropout:
            parts.append("dropout" if self.dropout_bits == 8 else f"dropout{self.dropout_bits}")
        if self.deterministic:
            parts.append("det")
        return "-".join(parts)


_KEY = re.compile(
    r"^d(?P<qk>\d+)(?:v(?P<v>\d+))?-(?P<dtype>[a-z0-9]+)(?P<causal>-causal)?"
    r"(?P<dropout>-dropout(?P<bits>16)?)?(?P<det>-det)?$"
)


def parse_key(key: str) -> Variant:
    """The variant that a key of presets names; ``parse_key(v.key) == v`` for each of them.

    Raises:
        SpecError: when ``key`` is not of the form of a key, or names an illegal size or dtype.
    """
    match = _KEY.match(key)
    if not match:
        raise SpecError(
            f"{key}: expected a key such as d128-bf16-causal or d128v64-fp16-causal-dropout-det "
            "(order: dNN[vNN], dtype, causal, dropout or dropout16, det)."
        )
    head_dim = int(match["qk"])
    head_dim_v = int(match["v"] or head_dim)
    for size in (head_dim, head_dim_v):
        check_head_dim(size, where=key)
    if match["dtype"] not in DTYPES:
        raise SpecError(f"{key}: dtype: expected one of {', '.join(DTYPES)}, got {match['dtype']}.")
    bits = 0 if not match["dropout"] else int(match["bits"] or 8)
    return Variant(
        head_dim, head_dim_v, match["dtype"], bool(match["causal"]), bits, bool(match["det"])
    )


def check_head_dim(size: int, where: str) -> None:
    """Raise a SpecError unless ``size`` is a multiple of 8 from 8 to 256."""
    if size % HEAD_DIM_STEP or not HEAD_DIM_STEP <= size <= MAX_HEAD_DIM:
        padded = min(MAX_HEAD_DIM, max(8, -(-size // HEAD_DIM_STEP) * HEAD_DIM_STEP))
        remedy = (
            f"Pad the head dimension to {padded}."
            if size <= MAX_HEAD_DIM
            else "Split the head: larger heads than 256 have no kernel."
        )
        raise SpecError(
            f"{where}: head_dim: expected a multiple of 8 from 8 to 256, got {size}. {remedy}"
        )
