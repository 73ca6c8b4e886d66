"""Variant -> Program: its score and mask as expressions, loop bounds and rendered hooks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from ..body import Param
from ..ir import Expr, Name, compare_all, simplify, to_text, walk
from ..ir.cpp_names import cpp_name
from ..ir.types import plain
from ..variant import Variant
from .band import split_band
from .data import Band, Function, GradientSite, Member, ProgramCapture, TileBound
from .hooks import DSCORE, Gradient, Hooks, gradient_of, hooks_for, new_emitter, sites_of
from .presets import WINDOW_SIDES, conjuncts_of, preset_captures, preset_params, score_of
from .tiles import classify

__all__ = [
    "DSCORE",
    "Band",
    "Function",
    "Gradient",
    "GradientSite",
    "Hooks",
    "Member",
    "Param",
    "Program",
    "ProgramCapture",
    "TileBound",
    "cpp_name",
    "program_for",
]


@dataclass(frozen=True, slots=True)
class Program:
    """What a template's hooks are filled from, and what a call and `explain` need to know.

    Attributes:
        captures: in the order of the call: alibi_slopes, block_mask, then the variant's own.
        params: run-time params in the order of the call: the presets', then the variant's own.
        score: what the softmax takes, of ``score`` = softmax_scale * q.k; None for unchanged.
        mask: the predicate on one element, band included; None when all are visible.
        band: the part of the mask that is a band of diagonals.
        tile_test: the part of the mask that the band does not hold; None for none.
        bounds: per-tile bounds of captures that the tile test reads.
        gradient: the derivative of the score; None where it is unchanged.
        gradients: the places that read a capture with a gradient.
        score_needed: the derivative reads ``score``.
        hooks: the bodies of the rendered hooks.
    """

    captures: tuple[ProgramCapture, ...] = ()
    params: tuple[Param, ...] = ()
    score: Expr | None = None
    mask: Expr | None = None
    band: Band = Band()
    tile_test: Expr | None = None
    bounds: tuple[TileBound, ...] = ()
    gradient: Gradient | None = None
    gradients: tuple[GradientSite, ...] = ()
    score_needed: bool = False
    hooks: Hooks | None = field(default=None, compare=False, repr=False)

    def cpp_type(self, param: Param) -> str:
        """The type of a run-time param in ProgramArgs; the sides of a window are positions."""
        if param.type == "float":
            return "Acc"
        return "int" if param.name in WINDOW_SIDES else "int64_t"

    @property
    def has_args(self) -> bool:
        """Whether ProgramArgs has members."""
        return bool(self.captures or self.params)

    @property
    def headers(self) -> tuple[str, ...]:
        """The plain headers that the rendered hooks need, below ``templates/``."""
        if self.captures or self.tile_test is not None:
            tiles = ("host/interval.h",) if self.tile_test is not None else ()
            return ("host/capture.h", *tiles, "host/program_math.h")
        plain_bounds = self.hooks is None or not self.hooks.head.members
        if self.score is None and plain_bounds and "math::" not in self._mask_lines:
            return ()
        return ("host/program_math.h",)

    @property
    def _mask_lines(self) -> str:
        body = self.hooks.mask if self.hooks is not None else None
        return "" if body is None else "\n".join((*body.statements, body.result))

    @property
    def mask_text(self) -> str:
        """The mask in the language of the specs, for comments; ``True`` when all are visible."""
        return "True" if self.mask is None else to_text(self.mask)

    @property
    def score_text(self) -> str:
        """The score in the language of the specs."""
        return "score" if self.score is None else to_text(self.score)


@cache
def program_for(variant: Variant) -> Program:
    """The program that ``variant``'s presets and its own score and mask make together."""
    own = variant.body
    captures = preset_captures(variant)
    params = preset_params(variant)
    if own is not None:
        captures += tuple(ProgramCapture(c.name, c.dims, c.dtype, c.grad) for c in own.captures)
        params += own.params
    score = score_of(variant)
    conjuncts = tuple(simplify(conjunct) for conjunct in conjuncts_of(variant))
    mask = compare_all(conjuncts)
    by_name = {capture.name: capture for capture in captures}
    emitter = new_emitter(by_name, "double" if variant.dtype == "fp64" else "float")
    band, tile_test = split_band(conjuncts, emitter.graph)
    gradient = gradient_of(score, by_name) if score is not None else None
    hooks = hooks_for(emitter, mask, score, gradient, band)
    bounds: tuple[TileBound, ...] = ()
    if mask is not None and tile_test is not None:
        classify_tile, bounds = classify(emitter, mask)
        hooks = replace(hooks, classify=classify_tile)
    return Program(
        captures,
        params,
        score,
        mask,
        band,
        tile_test,
        bounds,
        gradient,
        sites_of(emitter, gradient),
        _reads_score(gradient),
        hooks,
    )


def _reads_score(gradient: Gradient | None) -> bool:
    if gradient is None:
        return False
    roots = (gradient.score, *(value for _, value in gradient.loads))
    return any(isinstance(n, Name) and n.id == "score" for n in walk(*map(plain, roots)))
