"""Tiles that the backward plans of the sm80 family come in, best first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from ..arch import Target
from ..program import Program, program_for
from ..variant import Variant
from .base import hides_keys, is_ragged
from .reads import read_levels
from .sm80_backward import can_take_turns, walks_tiles


def _is_plain(variant: Variant, program: Program) -> bool:
    """Whether no more than bottom-right causal is asked for, which takes fewest registers."""
    return (
        program.score is None
        and not hides_keys(program)
        and variant.layout != "varlen"
        and not variant.dropout
    )


def _scores_beside_walk(variant: Variant, program: Program) -> bool:
    """Whether a warp has registers for 32 queries' scores although its kernel walks tiles.

    So it is with a mask of positions alone, which neither reads captures nor has diagonals for
    bounds. One part reads each fragment of K and V once a step: 136 ldmatrix at d128, not 168.
    """
    return (
        program.score is None
        and not program.captures
        and (program.band.lower, program.band.upper) == (None, None)
        and variant.layout != "varlen"
        and not (variant.dropout or variant.deterministic or variant.block_mask)
        and variant.head_dim == variant.head_dim_v
        and variant.head_dim in (96, 128)  # 104 to 120 spill 8 bytes with nvcc 13.0
    )


def _order(variant: Variant, program: Program) -> dict[str, Any]:
    """Longest blocks of several heads first: 3 to 5 % less at d64, d128, d256 on an H200 (2026-12).

    So it is below a causal mask, and where a prompt of each sequence's own length is seen by all.
    """
    prompt = bool(program.captures) and not read_levels(program) and variant.layout != "varlen"
    longest_first = is_ragged(variant) or (program.tile_test is not None and prompt)
    return {"head_sections": 32} if longest_first else {}


def backward_shapes(variant: Variant, target: Target) -> Iterator[dict[str, Any]]:
    """Tiles in order of preference; above 128 columns two warps share their keys' columns."""
    columns = max(variant.head_dim, variant.head_dim_v)
    # From sm90 on dQ takes four values an instruction. Up to 44 bytes spill at d104 to d120.
    fast = target.capability >= (9, 0) and not 96 < columns < 128
    if fast and can_take_turns(variant):
        yield from in_turns(variant, target)
    # as backward_tiles has them
    program = program_for(variant)
    walks = walks_tiles(program)
    hopper = target.capability[0] == 9  # the others' compilers hold more ahead, and spill
    later = target.capability >= (10, 0)
    if columns <= 128 and program.gradients:  # their sums take registers
        splits = 2 if later else 1
        shapes = [(64, 8, 1, 1, splits, 2, 1) if columns <= 64 else (32, 8, 1, 1, 2, 2, 1)]
    elif columns <= 64:
        # All others spill with 32 queries at once; so, before sm90, does `deterministic` unmasked.
        unmasked = variant.deterministic and program.mask is None
        splits = 2 if _is_plain(variant, program) and (hopper or not unmasked) else 4
        shapes = [(64, 4, 2, 1, splits, 1, 2), (64, 8, 1, 1, 1, 2, 1)]
    elif columns <= 80:
        shapes = [(64, 8, 1, 1, 1, 2, 1)]
    elif columns <= 128:
        beside = hopper and _scores_beside_walk(variant, program)
        splits = 2 if later or (walks and not beside) else 1
        shapes = [(64, 8, 2, 2, splits, 2, 1), (64, 8, 2, 2, splits, 1, 1)]
    else:
        splits = 1 if hopper and not walks else 2
        shapes = [
            (64, 8, 1, 2, splits, 2, 1),
            (64, 8, 1, 2, splits, 1, 1),
            (32, 8, 1, 2, 1, 1, 1),
            (32, 4, 1, 2, 1, 1, 1),
        ]
        if later and columns > 192:
            del shapes[:2]
    if columns <= 128:
        shapes += [(32, 8, 1, 1, 1, 2, 1), (32, 4, 1, 1, 1, 2, 1), (32, 4, 1, 1, 1, 1, 1)]
    small = target.max_smem_bytes < 128 * 1024  # their compilers hold more ahead, and spill
    order = _order(variant, program) if hopper and not variant.deterministic else {}
    for shape in shapes:
        tiles = backward_tiles(*shape) | order
        if order and variant.dropout and 96 < columns <= 128 and tiles["num_stages"] > 1:
            tiles["late_copies"] = True  # 12 bytes spill else; 5 % on an H200 (2026-12)
        if hopper and columns > 224 and not variant.causal and splits == 1:
            tiles["late_copies"] = True  # 20 bytes spill else
        if hopper and 64 < columns <= 80 and _is_plain(variant, program):
            tiles["short_addresses"] = True  # 4 % on an H200 (d80; 2026-12)
        if small and tiles["head_splits"] == 1:
            tiles["score_splits"] = 2
        yield tiles


def in_turns(variant: Variant, target: Target) -> Iterator[dict[str, Any]]:
    """The tiles of what isn't deterministic: two products less than with a kernel for dQ.

    On an H200 15 % (d128) and 19 % (d64) faster, causal, seqlen 1,024 and 4,096 (2026-12).
    """
    other = replace(variant, deterministic=False)
    for tiles in islice(backward_shapes(other, target), 2):
        if tiles["num_warps"] == 4 and program_for(variant).mask is None:
            tiles["score_splits"] = 4  # with 2, 4 bytes spill at d64
        yield tiles | {"takes_turns": True, "head_sections": 0}


def backward_tiles(
    tile_m: int,
    num_warps: int,
    key_atoms: int,
    head_splits: int,
    score_splits: int,
    num_stages: int = 1,
    min_blocks: int = 1,
) -> dict[str, Any]:
    """Fields of a `Sm80BackwardPlan` by name, with the keys that its warps make."""
    return {
        "tile_m": tile_m,
        "tile_n": 16 * key_atoms * num_warps // head_splits,
        "num_warps": num_warps,
        "key_atoms": key_atoms,
        "head_splits": head_splits,
        "score_splits": score_splits,
        "num_stages": num_stages,
        "min_blocks": min_blocks,
    }
