"""A tensor mask's kind -> the body of the variant that reads it, and its key.

PyTorch's attention masks broadcast along batch, heads and queries, are bool or of some float
dtype, and may need a gradient. Each kind is one program; no value of a mask is in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import get_args

from ..generator.body import Body, CaptureDtype
from ..generator.canonical import body_hash
from ..generator.spec import load_specs
from ..generator.variant import Variant, parse_key
from . import model_bodies

CAPTURE = "attn_mask"
_AXES = {"b": "batch", "h": "num_heads", "q": "seqlen_q", "k": "seqlen_k"}
_INDICES = {"b": "b", "h": "h", "q": "q_idx", "k": "kv_idx"}
# A float below hides its key, and so, of masks that are the same for all queries, a tile that is
# never loaded: -inf, and the least numbers of fp32 and bf16, which models write in its place. Such
# numbers can't be scores: in base 2 they overflow, and a sum of exponentials is lost beside them.
_HIDDEN = "-1.0e38"
_HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class MaskKind:
    """What of a mask decides its program.

    Attributes:
        axes: letters of the dimensions it has: "k", and before it "q", "h", "b" where it does not
            broadcast.
        dtype: of its elements; bool masks say what is seen, float ones are added to the scores.
        grad: whether the backward gives its gradient.
    """

    axes: str
    dtype: str
    grad: bool = False


@cache
def body_of(kind: MaskKind) -> Body:
    """The program of a mask of ``kind``."""
    dims = ", ".join(_AXES[axis] for axis in kind.axes)
    element = f"{CAPTURE}[{', '.join(_INDICES[axis] for axis in kind.axes)}]"
    if kind.dtype == "bool":
        program = f'mask: "{element}"'
    else:
        # "not <" and not ">=": a NaN stays one
        program = f'mask: "not {element} < {_HIDDEN}"\nscore: "score + {element}"'
    grad = ", grad: true" if kind.grad else ""
    text = (  # of sizes and dtype a body has nothing
        f"head_dim: 64\ndtype: {'fp64' if kind.dtype == 'fp64' else 'fp32'}\n"
        f"captures: {{{CAPTURE}: {{dims: [{dims}], dtype: {kind.dtype}{grad}}}}}\n{program}\n"
    )
    (spec,) = load_specs(text, f"{CAPTURE}.yaml")
    body = spec.variants[0].body
    assert body is not None
    return body


@cache
def mark_of(axes: str, dtype: str, grad: bool) -> str:
    """What the key of a variant with this kind of mask ends in."""
    return f"-{body_hash(body_of(MaskKind(axes, dtype, grad)))}"


def find_mark(axes: str, dtype: str, grad: bool) -> str:
    """`mark_of`, without a cache that torch.compile would see through."""
    return mark_of(axes, dtype, grad)


def find_model_mark(mask: str, bias: str, bias_dtype: CaptureDtype, grad: bool, hides: bool) -> str:
    """What the key of a variant with this `model_bodies.BodyKind` ends in."""
    body = model_bodies.body_of(model_bodies.BodyKind(mask, bias, bias_dtype, grad, hides))
    return "" if body is None else f"-{body_hash(body)}"


def variant_of(key: str) -> Variant | None:
    """The variant of ``key`` if it is one with a mask of these kinds, or with a model's body."""
    presets, _, mark = key.rpartition("-")
    if len(mark) != _HASH_DIGITS or not set(mark) <= set("0123456789abcdef"):
        return None
    body = _by_hash().get(mark) or _of_models().get(mark)
    return None if body is None else replace(parse_key(presets), body=body)


@cache
def _by_hash() -> dict[str, Body]:
    """Every kind's body, by the digits of its key."""
    kinds = [
        MaskKind("".join(axes) + "k", dtype, grad)
        for axes in product(*(("", axis) for axis in "bhq"))
        for dtype in get_args(CaptureDtype)
        if dtype not in ("int32", "int64")
        for grad in ((False,) if dtype == "bool" else (False, True))
    ]
    return {body_hash(body_of(kind)): body_of(kind) for kind in kinds}


@cache
def _of_models() -> dict[str, Body]:
    """Likewise those of the integrations' calls."""
    bodies = filter(None, map(model_bodies.body_of, model_bodies.all_kinds()))
    return {body_hash(body): body for body in bodies}
