"""A variant's keys -> the expressions that they stand for, in the order of their application.

scale -> softcap -> ALiBi -> the variant's own score; then causal, window, its own mask and the
block mask, all of which must hold.
"""

from __future__ import annotations

from ..body import Param
from ..ir import Const, Expr, Load, Name, binary, call, substitute
from ..ir.types import plain
from ..variant import Variant
from .data import ProgramCapture

WINDOW_SIDES = ("window_left", "window_right")
SCORE = Name("score", "float")
Q_IDX, KV_IDX = Name("q_idx"), Name("kv_idx")
SHIFT = binary("-", Name("kv_len"), Name("q_len"))
"""Bottom-right alignment, as FlashAttention >= 2.1: the last query sees the last key."""
DIAGONAL = binary("+", Q_IDX, SHIFT)


def preset_captures(variant: Variant) -> tuple[ProgramCapture, ...]:
    """The captures that presets read, in the order of the call."""
    found = []
    if variant.alibi:
        found.append(ProgramCapture("alibi_slopes", ("batch", "num_heads"), "fp32"))
    if variant.block_mask is not None:
        dims = ("batch", "num_heads", "blocks_q", "blocks_k")
        found.append(ProgramCapture("block_mask", dims, "bool", block=variant.block_mask))
    return tuple(found)


def preset_params(variant: Variant) -> tuple[Param, ...]:
    """The run-time params of presets, in the order of the call."""
    found = []
    if variant.window is not None and variant.window.runtime:
        found += [Param(side, "int") for side in WINDOW_SIDES]
    if variant.softcap == "runtime":
        found.append(Param("softcap", "float"))
    return tuple(found)


def score_of(variant: Variant) -> Expr | None:
    """The score that the softmax takes, of ``score`` (scaled); None where it is the same."""
    result: Expr = SCORE
    if variant.softcap is not None:
        result = softcapped(result, variant.softcap)
    if variant.alibi:
        slope = Load("alibi_slopes", (Name("b"), Name("h")), "float")
        distance = call("abs", binary("-", DIAGONAL, KV_IDX))
        result = binary("-", result, binary("*", slope, distance))
    own = variant.body.score if variant.body is not None else None
    if own is not None:
        result = substitute(own, {"score": result})
    return None if plain(result) == SCORE else result


def softcapped(score: Expr, softcap: float | str) -> Expr:
    """``softcap * tanh(score / softcap)``, softcap being a number or "runtime"."""
    cap: Expr = Name("softcap", "float")
    if not isinstance(softcap, str):
        cap = Const(float(softcap))
    return binary("*", cap, call("tanh", binary("/", score, cap)))


def conjuncts_of(variant: Variant) -> tuple[Expr, ...]:
    """What must hold for a query to see a key, in the order in which it is asked."""
    found: list[Expr] = []
    if variant.causal:
        limit = Q_IDX if variant.causal == "top_left" else DIAGONAL
        found.append(binary("<=", KV_IDX, limit))
    if variant.window is not None:
        found += _window(variant)
    if variant.body is not None and variant.body.mask is not None:
        found.append(variant.body.mask)
    if variant.block_mask is not None:
        rows, columns = variant.block_mask
        index = (
            Name("b"),
            Name("h"),
            binary("//", Q_IDX, Const(rows)),
            binary("//", KV_IDX, Const(columns)),
        )
        found.append(Load("block_mask", index, "bool"))
    return tuple(found)


def _window(variant: Variant) -> list[Expr]:
    """Each side as a sum of two positions at most on either side, which is a 32-bit int."""
    window = variant.window
    assert window is not None
    left: Expr | None = Const(window.left) if window.left is not None else None
    right: Expr | None = Const(window.right) if window.right is not None else None
    if window.runtime:
        left, right = (Name(side) for side in WINDOW_SIDES)
    found = []
    if left is not None:
        found.append(binary("<=", DIAGONAL, binary("+", KV_IDX, left)))
    if right is not None:
        found.append(binary("<=", binary("-", KV_IDX, right), DIAGONAL))
    return found
