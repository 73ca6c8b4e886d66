"""Orders of what family sm90's backward does: thread blocks that stay, and what the tuner tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from .base import legal

if TYPE_CHECKING:
    from .sm90_backward import Sm90BackwardPlan

SECTION_HEADS = 32  # most heads whose thread blocks are dealt out together


def persistent(plan: Sm90BackwardPlan, faster: bool = True) -> Iterator[Sm90BackwardPlan]:
    """The plan with thread blocks that stay, and with dQ converted by them.

    With `faster` those alone that were faster on an H200 (2026-12), up to 8 %; without, all.
    """
    variant, program = plan.variant, plan.program
    slower = (
        plan.adds_in_order
        or variant.dropout > 0
        or 80 < variant.head_dim < 128  # 2 to 7 %
        or variant.layout == "varlen"  # these two were not timed
        or bool(program.gradients)
    )
    if faster and slower:
        return
    staying = replace(plan, persistent_blocks=True)
    reads = program.tile_test is not None and bool(program.captures)
    spills = program.score is not None or (reads and variant.head_dim <= 64)
    if not (faster and spills):
        yield from legal([replace(staying, early_conversion=True)])
    yield staying


def alternatives(tiles: Sm90BackwardPlan, ragged: bool, early: bool) -> Iterator[Sm90BackwardPlan]:
    """Orders of thread blocks, of kernels and of products that the tuner tries."""
    for heads in (SECTION_HEADS, 0, SECTION_HEADS // 4) if ragged else (0,):
        for early_exponentials in (True, False)[not early :]:
            for chained in (True, False):
                yield replace(
                    tiles,
                    head_sections=heads,
                    early_exponentials=early_exponentials,
                    chained_launches=chained,
                )
