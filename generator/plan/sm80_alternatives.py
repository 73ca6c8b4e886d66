"""Tiles of the sm80 family that `flashgen tune` tries behind those that may ship.

They are what arithmetic speaks for and no clock has confirmed: docs/sm80.md says which and why.
With nvcc 13.0 none of them spills on sm80 or sm90 at the sizes that page names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..arch import Target
from ..program import program_for
from ..variant import Variant
from .sm80_backward import can_take_turns
from .sm80_backward_tiles import backward_shapes, backward_tiles, in_turns
from .sm80_forward import forward_shapes, forward_tiles

# num_stages, paced, short_rows, rescale of a loop over the same tiles
_LOOPS = (
    (1, False, False, "rows"),
    (1, False, False, "joint"),
    (1, False, False, "seldom"),
    (1, False, True, "seldom"),
    (1, True, True, "rows"),
    (1, True, True, "seldom"),
    (2, False, True, "seldom"),
    (2, True, True, "seldom"),
)


def forward_alternatives(variant: Variant, target: Target) -> Iterator[dict[str, Any]]:
    """Tiles and loops of the forward, a dict of `Sm80ForwardPlan` fields each."""
    columns = max(variant.head_dim, variant.head_dim_v)
    shipped = next(forward_shapes(variant, target))
    # as forward_tiles has them
    if columns <= 128:  # K and V are fetched half as often; 128 keys a step halve the barriers
        shapes = [(256, 64, 8, 1, 1), (128, 128, 8, 1, 1)]
        if columns > 96 and (variant.dropout or not variant.causal):  # 16 to 88 bytes spill
            del shapes[0]
    else:  # the same; queries shared or not, whichever doesn't ship
        shapes = [(128, 64, 8, 1, 1), (128, 32, 8, 1, 1), (64, 64, 4, 1, 2), (64, 64, 4, 2, 2)]
    tiles = [forward_tiles(*shape) for shape in shapes]
    yield from tiles
    if columns <= 128:
        loops = [(shipped, loop) for loop in _LOOPS if not _spills(loop, variant, target)]
    else:
        loops = [(shipped, loop) for loop in _LOOPS[:6]]
        loops += [(tiles[0], loop) for loop in _LOOPS[3:] if loop[-1] != "rows"]
        loops += [(tiles[3], _LOOPS[3])]
    names = ("num_stages", "paced", "short_rows", "rescale")
    for tile, loop in loops:
        yield tile | dict(zip(names, loop, strict=True))


def _spills(loop: tuple[int, bool, bool, str], variant: Variant, target: Target) -> bool:
    """Whether nvcc 13.0 spills it at d64 or d128: 4 to 12 bytes on sm90, 48 on sm80."""
    num_stages, paced, _, rescale = loop
    columns = max(variant.head_dim, variant.head_dim_v)
    if columns <= 64:
        return num_stages > 1 or (paced and rescale == "rows")
    before_sm90 = target.capability < (9, 0)
    return columns > 96 and before_sm90 and not variant.causal and not paced


def backward_alternatives(variant: Variant, target: Target) -> Iterator[dict[str, Any]]:
    """Tiles of the backward, a dict of `Sm80BackwardPlan` fields each."""
    if can_take_turns(variant):
        yield from in_turns(variant, target)
    columns = max(variant.head_dim, variant.head_dim_v)
    shipped = next(backward_shapes(variant, target))
    if program_for(variant).mask is not None:  # the last blocks to run are short ones
        yield shipped | {"head_sections": 0 if shipped.get("head_sections") else 32}
        yield shipped | {"head_sections": 32, "short_addresses": True}
        if columns > 128:
            more = {"short_addresses": True, "late_copies": True, "head_sections": 32}
            yield backward_tiles(64, 8, 2, 4, 1, 2) | more
    for late_copies in (False, True):  # fewer instructions between a step's barriers
        steps = {"short_addresses": True, "late_copies": late_copies}
        yield shipped | steps
        if columns > 128:
            yield backward_tiles(64, 8, 2, 4, 1, 2) | steps
    # as backward_tiles has them
    if columns <= 64:  # 32 queries at once, 64 x 128 pairs a step for twice as many warps
        shapes = [(128, 8, 2, 2, 1, 2, 1), (64, 4, 2, 1, 2, 1, 2)]
    elif columns <= 80:  # each fragment of Q and dO feeds two products, as at d64 and d128
        shapes = [(64, 8, 2, 2, 2, 2, 1), (64, 8, 2, 2, 1, 2, 1)]
    elif columns <= 128:  # one part reads K and V once a step
        shapes = [(64, 8, 2, 2, 1, 2, 1), (64, 4, 2, 2, 1, 1, 1)]
    else:  # four warps share keys: 13 % fewer bytes from shared memory than two
        shapes = [(64, 8, 1, 2, 1, 2, 1), (64, 8, 2, 4, 1, 2, 1), (64, 8, 2, 4, 1, 1, 1)]
    if columns <= 128 and variant.dropout:  # four warps spill 8 to 56 bytes
        shapes = [shape for shape in shapes if shape[1] == 8]
    # Steps of 64 keys halve the barriers of the separate dQ kernel; at d128 they spill 348 bytes.
    dq_tiles = (64, 32) if variant.deterministic and not 96 < columns <= 128 else (32,)
    for shape in shapes:
        for dq_tile_n in dq_tiles:
            yield backward_tiles(*shape) | {"dq_tile_n": dq_tile_n}
