"""Variant -> plans of the sm90 family's forward that `flashgen tune` tries: no default has them."""

from __future__ import annotations

from collections.abc import Iterator

from ..program import program_for
from ..variant import Variant
from .base import hides_keys
from .sm90_tiles import Tiles


def untried(variant: Variant) -> Iterator[tuple[Tiles]]:
    """Configurations about a block's cost beside its steps, which short sequences feel."""
    program = program_for(variant)
    if program.score is not None or program.tile_test is not None or variant.dropout:
        return
    columns = max(variant.head_dim, variant.head_dim_v)
    if columns <= 64:
        yield (Tiles(128, 64, 4, teams=2),)
        yield (Tiles(128, 64, 4, q_slots=2, chain=True, teams=2),)
        if not hides_keys(program):  # three warpgroups spill a few registers where they clean V
            yield (Tiles(192, 128, 3, q_slots=2, chain=True),)
    if columns > 128:
        yield (Tiles(128, 64 if columns > 192 else 96, chain=True),)
