"""Variant: one attention function, frozen and canonical, and its key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal

from .body import Body
from .canonical import HASH_CHARS, body_hash
from .errors import SpecError

DTYPES = ("fp16", "bf16", "fp32", "fp64")
GPU_DTYPES = ("fp16", "bf16")
"""Those that tensor cores take; the others run on target cpu only."""
PASSES = ("forward", "backward")
PASS_PREFIX = {"forward": "fwd", "backward": "bwd"}
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
MAX_WINDOW = 2**30 - 1  # a bound; 2^30 is what a call passes for none
MIN_SOFTCAP, MAX_SOFTCAP = 0.001, 1e6
BLOCK_STEP, MAX_BLOCK = 16, 4096

SPELLINGS = {
    **dict.fromkeys(("float16", "half", "f16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bfp16"), "bf16"),
    **dict.fromkeys(("float32", "float", "f32"), "fp32"),
    **dict.fromkeys(("float64", "double", "f64"), "fp64"),
    "deterministic": "det",
}
"""Other systems' words for ours: never accepted, but a message then names the right one."""


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


@dataclass(frozen=True)  # no slots: they would leave the key, computed once, no place
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
    _key: ClassVar[str]  # of the instance; a field would be a part of what a variant is

    @property
    def dropout(self) -> bool:
        """Whether dropout is compiled in."""
        return self.dropout_bits > 0

    def __post_init__(self) -> None:
        # not functools.cached_property, whose lock torch.compile can't trace
        object.__setattr__(self, "_key", self._named())

    @property
    def key(self) -> str:
        """The readable, stable, complete name, such as ``d128v64-bf16-causal-dropout-det``."""
        return self._key

    def _named(self) -> str:
        size = f"d{self.head_dim}"
        if self.head_dim_v != self.head_dim:
            size += f"v{self.head_dim_v}"
        marks = (mark.text(getattr(self, mark.field)) for mark in _MARKS)
        body = () if self.body is None else (body_hash(self.body),)
        return "-".join((size, self.dtype, *filter(None, marks), *body))


@dataclass(frozen=True, slots=True)
class _Mark:
    """One optional part of a key: how a field of the variant is written and read.

    Attributes:
        field: of the variant.
        text: the part for a value; "" for the field's default.
        pattern: what the part looks like.
        value: the field's value, of the pattern's match.
        words: the parts that are plain words, to correct slips by.
    """

    field: str
    text: Callable[[Any], str]
    pattern: str
    value: Callable[[re.Match[str]], Any]
    words: tuple[str, ...] = ()


def _chosen(field: str, words: dict[Any, str]) -> _Mark:
    """A mark that is one of a few words, one for each value but the default."""
    values = {word: value for value, word in words.items()}
    return _Mark(
        field,
        lambda value: words.get(value, ""),
        "|".join(values),
        lambda match: values[match[0]],
        tuple(values),
    )


def _window_text(window: Window | None) -> str:
    if window is None or window.runtime:
        return "" if window is None else "windowrt"
    left, right = ("inf" if b is None else str(b) for b in (window.left, window.right))
    return f"window{left}x{right}"


def _window_value(match: re.Match[str]) -> Window:
    if match[0] == "windowrt":
        return Window(runtime=True)
    left, right = (None if b == "inf" else int(b) for b in match[0][len("window") :].split("x"))
    return Window(left, right)


def _softcap_text(softcap: float | str | None) -> str:
    if softcap is None or isinstance(softcap, str):
        return "" if softcap is None else "softcaprt"
    digits = format(Decimal(repr(float(softcap))), "f")  # the shortest, without an exponent
    return f"softcap{digits.removesuffix('.0')}"


def _softcap_value(match: re.Match[str]) -> float | str:
    return "runtime" if match[0] == "softcaprt" else float(match[0][len("softcap") :])


def _block_value(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(size) for size in match[0][len("blockmask") :].split("x"))


_MARKS = (
    _chosen("layout", {"varlen": "varlen"}),
    _chosen("causal", {True: "causal", "top_left": "causaltl"}),
    _Mark(
        "window",
        _window_text,
        "window(?:rt|(?:inf|[0-9]{1,10})x(?:inf|[0-9]{1,10}))",
        _window_value,
        ("windowrt",),
    ),
    _Mark(
        "softcap",
        _softcap_text,
        r"softcap(?:rt|[0-9]{1,20}(?:\.[0-9]{1,30})?)",
        _softcap_value,
        ("softcaprt",),
    ),
    _chosen("alibi", {True: "alibi"}),
    _chosen("sink", {"learned": "sink", "fixed": "sinkfixed"}),
    _Mark(
        "block_mask",
        lambda sizes: "" if sizes is None else f"blockmask{sizes[0]}x{sizes[1]}",
        "blockmask[0-9]{1,5}x[0-9]{1,5}",
        _block_value,
    ),
    _chosen("dropout_bits", {8: "dropout", 16: "dropout16"}),
    _chosen("deterministic", {True: "det"}),
)
"""The parts of a key behind size and dtype, in their order."""

_KEY = re.compile(
    r"d(?P<qk>[0-9]+)(?:v(?P<v>[0-9]+))?-(?P<dtype>[a-z0-9]+)"
    + "".join(f"(?:-(?P<{mark.field}>{mark.pattern}))?" for mark in _MARKS)
    + f"(?:-(?P<body>[0-9a-f]{{{HASH_CHARS}}}))?"
)
_WORDS = tuple(word for mark in _MARKS for word in mark.words)
MAX_KEY_CHARS = 160
_KEY_FORM = (
    "a key such as d128-bf16-causal or d128v64-fp16-causal-dropout-det (in this order: dNN or "
    "dNNvNN, dtype, varlen, causal or causaltl, window4096x0 or windowrt, softcap50 or softcaprt, "
    "alibi, sink or sinkfixed, blockmask128x128, dropout or dropout16, det)"
)


def parse_key(key: str) -> Variant:
    """The variant that a key of presets names; ``parse_key(v.key) == v`` for each of them.

    Only the canonical spelling is a key, so that one variant has one name in caches and logs.
    A key that ends in the hash of a body can't be parsed: the catalogue finds it.

    Raises:
        SpecError: when ``key`` is not of the form of a key, names an illegal size or dtype, ends
            in a hash, or is not the canonical spelling, which the message then gives.
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
    variant = _variant(match)
    _check_limits(variant, where=key)
    if match["body"]:
        raise SpecError(
            f"{key}: expected a key of presets or one that a spec lists, got one whose score and "
            f"mask ({match['body']}) no spec at hand has. Add the spec's folder by --specs or "
            "FLASHGEN_SPECS, or load the spec's file."
        )
    if variant.key != key:
        raise SpecError(f"{key}: expected the key {variant.key!r}, got {key!r}. Write it so.")
    return variant


def is_key(text: str) -> bool:
    """Whether ``text`` is the key of some variant, with a body or without."""
    match = _KEY.fullmatch(text) if len(text) <= MAX_KEY_CHARS else None
    if not match or match["dtype"] not in DTYPES:
        return False
    variant, body = _variant(match), match["body"]
    try:
        _check_limits(variant, where="")
    except SpecError:
        return False
    return text == variant.key + (f"-{body}" if body else "")


def _variant(match: re.Match[str]) -> Variant:
    """The variant of a match of _KEY, whatever its limits."""
    found: dict[str, Any] = {}
    for mark in _MARKS:
        part = re.fullmatch(mark.pattern, match[mark.field] or "")
        if part:
            found[mark.field] = mark.value(part)
    head_dim, head_dim_v = (int(size) for size in (match["qk"], match["v"] or match["qk"]))
    return Variant(head_dim, head_dim_v, match["dtype"], **found)


def _check_limits(variant: Variant, where: str) -> None:
    for size in (variant.head_dim, variant.head_dim_v):
        check_head_dim(size, where)
    if (window := variant.window) is not None and not window.runtime:
        bounds = [b for b in (window.left, window.right) if b is not None]
        if not bounds or max(bounds) > MAX_WINDOW:
            raise SpecError(
                f"{where}: window: expected a bound up to {MAX_WINDOW}, got "
                f"{_window_text(window)}. Leave out a window without bounds."
            )
    if isinstance(variant.softcap, float) and not MIN_SOFTCAP <= variant.softcap <= MAX_SOFTCAP:
        raise SpecError(
            f"{where}: softcap: expected a number from {MIN_SOFTCAP} to {MAX_SOFTCAP:.0f}, got "
            f"{variant.softcap:g}. Leave out a cap that never binds."
        )
    for size in variant.block_mask or ():
        if size % BLOCK_STEP or not BLOCK_STEP <= size <= MAX_BLOCK:
            raise SpecError(
                f"{where}: block_mask: expected multiples of {BLOCK_STEP} from {BLOCK_STEP} to "
                f"{MAX_BLOCK}, got {size}. Use 128x128."
            )


def canonical_key(text: str) -> str:
    """The key that ``text`` is likely to mean, whatever its order, case and slips; "" if none.

    ``D128_casual_bfloat16`` gives ``d128-bf16-causal``.
    """
    size = ""
    dtypes: set[str] = set()
    found: dict[str, Any] = {}
    for part in re.split(r"[-_\s,]+", text.strip().lower()):
        if not size and re.fullmatch(r"d[0-9]{1,3}(v[0-9]{1,3})?", part):
            size = part
            continue
        marked = _marked(part)
        near = difflib.get_close_matches(
            SPELLINGS.get(part, part), (*DTYPES, *_WORDS), n=1, cutoff=0.7
        )
        if not marked and near:
            dtypes.update(near[:1] if near[0] in DTYPES else ())
            marked = _marked(near[0])
            if not marked:
                continue
        if not marked:
            return ""
        found |= marked
    if not size or len(dtypes) != 1:
        return ""
    head_dim, _, head_dim_v = size[1:].partition("v")
    qk, v = int(head_dim), int(head_dim_v or head_dim)
    return Variant(qk, v, dtypes.pop(), **found).key


def _marked(part: str) -> dict[str, Any]:
    """The field that one part of a key sets, and its value; empty if it sets none."""
    for mark in _MARKS:
        if match := re.fullmatch(mark.pattern, part):
            return {mark.field: mark.value(match)}
    return {}


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
