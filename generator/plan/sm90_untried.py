"""Variant -> plans of the sm90 family's forward that `flashgen tune` tries: none has been timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..program import program_for
from ..variant import Variant
from .base import hides_keys
from .sm90_tiles import Tiles


def untried(variant: Variant) -> Iterator[tuple[Tiles, bool]]:
    """Tiles, and whether blocks are dealt out in pairs.

    What they are about is a block's cost beside its steps, which short sequences feel.
    """
    program = program_for(variant)
    if program.score is not None or program.tile_test is not None or variant.dropout:
        return
    columns = max(variant.head_dim, variant.head_dim_v)
    new = tuple(_tiles(columns))
    if hides_keys(program):  # three warpgroups spill a few registers where they clean V
        new = tuple(tiles for tiles in new if tiles.tile_m < 192)
    yield from ((tiles, False) for tiles in new)
    if program.mask is not None and variant.layout != "varlen" and not hides_keys(program):
        shipped = Tiles(128, 128, hold_q=True) if columns <= 128 else Tiles(128, 64)
        paired = (shipped, *(tiles for tiles in new if tiles.loaders == 2))
        yield from ((tiles, True) for tiles in paired)


def _tiles(columns: int) -> Iterator[Tiles]:
    """Configurations that no GPU has timed."""
    if columns <= 64:
        twins = Tiles(128, 64, 4, teams=2)
        yield twins
        yield replace(twins, q_slots=2, chain=True)
        chained = Tiles(192, 128, 3, q_slots=2, chain=True)
        yield chained
        yield replace(chained, loaders=3)
    if columns <= 128:
        yield Tiles(128, 128, hold_q=True, loaders=3)
        chained = Tiles(192, 80, 2, q_slots=2, chain=True)
        yield chained
        yield replace(chained, loaders=3)
    if columns > 128:
        chained = Tiles(128, 64 if columns > 192 else 96, 2, chain=True)
        yield chained
        yield replace(chained, loaders=3)
