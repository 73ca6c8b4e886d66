"""Variant: one attention function, frozen and canonical, and its key."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from .body import Body
from .errors import SpecError

DTYPES = ("fp16", "bf16", "fp32", "fp64")
GPU_DTYPES = ("fp16", "bf16")
"""Those that tensor cores take; the others run on target cpu only."""
PASSES = ("forward", "backward")
PASS_PREFIX = {"forward": "fwd", "backward": "bwd"}
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8


SPELLINGS = {
    **dict.fromkeys(("float16", "half", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfp16"), "bf16"),
    **dict.fromkeys(("float32", "float", "f32"), "fp32"),
    **dict.fromkeys(("float64", "double", "f64"), "fp64"),
    "deterministic": "det",
}
"""Other systems' words for ours: never accepted, but a message then names the right one."""

_MARKS = ("causal", "dropout", "dropout16", "det")


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window: kv_idx - (q_idx + kv_len - q_len) lies in [-left, right].

    Attributes:
        left: keys before the diagonal that a query sees; None for all.
        right: keys after it; None for all.
        runtime: left and right are call arguments, ``window_left`` and ``window_right``.
    """

    left: int | None = None
    right: int | None = None
    runtime: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """One attention function. Everything that changes its result is a field, and is in its key.

    Attributes:
        head_dim: size of a query and key row, in elements; a multiple of 8 up to 256.
        head_dim_v: size of a value and output row, likewise.
        dtype: of q, k, v, out and their gradients: fp16, bf16, fp32 or fp64.
        causal: query i sees keys up to i + seqlen_k - seqlen_q (bottom-right aligned), or with
            "top_left" up to i.
        dropout_bits: 0 without dropout, else the random bits spent on an element (8 or 16).
        deterministic: every gradient is bitwise reproducible.
        layout: "dense", or "varlen": sequences packed along one axis of tokens.
        window: the sliding window, None without.
        softcap: scores become softcap * tanh(score / softcap); None without, "runtime" for a call
            argument of that name.
        alibi: adds -alibi_slopes[h] * |q_idx + kv_len - q_len - kv_idx| to the scores.
        sink: "" without; else argument ``sink`` is a logit of each head that joins the softmax's
            denominator: "learned" with a gradient, "fixed" without.
        block_mask: (queries, keys) of a block of the call argument ``block_mask``; None without.
        body: the score and mask of its own; None without.
    """

    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool | Literal["top_left"] = False
    dropout_bits: int = 0
    deterministic: bool = False
    layout: Literal["dense", "varlen"] = "dense"
    window: Window | None = None
    softcap: float | Literal["runtime"] | None = None
    alibi: bool = False
    sink: Literal["", "learned", "fixed"] = ""
    block_mask: tuple[int, int] | None = None
    body: Body | None = None

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
    r"d(?P<qk>[0-9]+)(?:v(?P<v>[0-9]+))?-(?P<dtype>[a-z0-9]+)(?P<causal>-causal)?"
    r"(?P<dropout>-dropout(?P<bits>16)?)?(?P<det>-det)?"
)
MAX_KEY_CHARS = 100
_KEY_FORM = (
    "a key such as d128-bf16-causal or d128v64-fp16-causal-dropout-det "
    "(in this order: dNN or dNNvNN, dtype, causal, dropout or dropout16, det)"
)


def parse_key(key: str) -> Variant:
    """The variant that a key of presets names; ``parse_key(v.key) == v`` for each of them.

    Only the canonical spelling is a key, so that one variant has one name in caches and logs.

    Raises:
        SpecError: when ``key`` is not of the form of a key, names an illegal size or dtype, or is
            not the canonical spelling, which the message then gives.
    """
    if len(key) > MAX_KEY_CHARS:
        raise SpecError(f"{key[:20]}...: expected {_KEY_FORM}, got {len(key)} characters.")
    match = _KEY.fullmatch(key)
    if not match:
        near = canonical_key(key)
        hint = f" Did you mean {near!r}?" if near else ""
        raise SpecError(f"{key}: expected {_KEY_FORM}, got {key!r}.{hint}")
    if match["dtype"] not in DTYPES:
        near_dtype = difflib.get_close_matches(match["dtype"], DTYPES, n=1)
        hint = f" Did you mean {near_dtype[0]!r}?" if near_dtype else ""
        raise SpecError(
            f"{key}: dtype: expected one of {', '.join(DTYPES)}, got {match['dtype']!r}.{hint}"
        )
    sizes = match["qk"], match["v"] or match["qk"]
    head_dim, head_dim_v = (int(size) for size in sizes)
    for size in (head_dim, head_dim_v):
        check_head_dim(size, where=key)
    bits = 0 if not match["dropout"] else int(match["bits"] or 8)
    variant = Variant(
        head_dim, head_dim_v, match["dtype"], bool(match["causal"]), bits, bool(match["det"])
    )
    if variant.key != key:
        raise SpecError(f"{key}: expected the key {variant.key!r}, got {key!r}. Write it so.")
    return variant


def canonical_key(text: str) -> str:
    """The key that ``text`` is likely to mean, whatever its order, case and slips; "" if none.

    ``D128_casual_bfloat16`` gives ``d128-bf16-causal``.
    """
    size = ""
    words: set[str] = set()
    for part in re.split(r"[-_\s,]+", text.strip().lower()):
        if not size and re.fullmatch(r"d[0-9]{1,3}(v[0-9]{1,3})?", part):
            size = part
            continue
        word = SPELLINGS.get(part, part)
        near = difflib.get_close_matches(word, (*DTYPES, *_MARKS), n=1, cutoff=0.7)
        if not near:
            return ""
        words.add(near[0])
    dtypes = words.intersection(DTYPES)
    if not size or len(dtypes) != 1:
        return ""
    head_dim, _, head_dim_v = size[1:].partition("v")
    bits = 16 if "dropout16" in words else 8 * ("dropout" in words)
    qk, v = int(head_dim), int(head_dim_v or head_dim)
    return Variant(qk, v, dtypes.pop(), "causal" in words, bits, "det" in words).key


def check_head_dim(size: int, where: str) -> None:
    """Raise a SpecError unless ``size`` is a multiple of 8 from 8 to 256."""
    if size % HEAD_DIM_STEP or not HEAD_DIM_STEP <= size <= MAX_HEAD_DIM:
        raise SpecError(
            f"{where}: head_dim: expected a multiple of {HEAD_DIM_STEP} from {HEAD_DIM_STEP} to "
            f"{MAX_HEAD_DIM}, got {size}. {head_dim_remedy(size)}"
        )


def head_dim_remedy(size: int) -> str:
    """What to do about a head size that has no kernel, one sentence."""
    if size > MAX_HEAD_DIM:
        return f"Split the head: larger heads than {MAX_HEAD_DIM} have no kernel."
    if size < 1:
        return "Give the number of elements of a row."
    return f"Pad the head dimension to {-(-size // HEAD_DIM_STEP) * HEAD_DIM_STEP}."
