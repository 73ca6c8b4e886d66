"""Program + sizes -> Example: captures and numbers to show a variant with, plain and repeatable.

`flashgen explain` and the pictures of the catalogue need data for masks that read captures. It is
made to be seen, not to test: a capture along a sequence falls into four runs, a count is a third
of the keys, a table is smooth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ..generator.errors import SpecError
from ..generator.program import Program, ProgramCapture
from .captures import CAPTURE_DTYPES

RUNS = 4
BOOL_SHARE = 16
DEFAULTS = """\
an int capture along a sequence: 0, 1, 2, 3, each for a quarter of it
an int capture of two sequence dimensions: the distance |i - j|
an int capture of no sequence dimension: a third of the keys
a bool capture along a sequence: its first sixteenth; of two: where i has all bits of j
block_mask: the blocks whose row and column are alike modulo 3
a float capture of no sequence dimension: a wave; of one: falling; of two: a plaid
window_left and window_right: a fifth of the keys and 0; softcap: 30; other floats: 1
other int params: the square root of the number of keys"""
"""What an example is made of, for the help of `flashgen explain`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the call that an example is for."""

    seqlen_q: int
    seqlen_k: int
    num_heads: int = 4

    def of(self, axis: str | int) -> int:
        """The size of a capture's dimension; there is one sequence."""
        if isinstance(axis, int):
            return axis
        if axis.startswith("num_heads"):
            return self.num_heads
        if axis == "batch":
            return 1
        return self.seqlen_q if axis in ("seqlen_q", "total_q") else self.seqlen_k


@dataclass(frozen=True, eq=False, slots=True)
class Example:
    """Values for every capture and run-time param of a program, by name."""

    captures: Mapping[str, torch.Tensor] = field(default_factory=dict)
    params: Mapping[str, int | float] = field(default_factory=dict)


def example_for(
    program: Program, sizes: Sizes, numbers: Mapping[str, int | float] | None = None
) -> Example:
    """Example data for a program; what its values are is in ``DEFAULTS``.

    Args:
        program: whose captures and run-time params.
        sizes: of the call.
        numbers: values by name that replace the defaults: of a run-time param, or of every
            element of a capture.

    Raises:
        SpecError: when ``numbers`` names what the program doesn't read.
    """
    chosen = dict(numbers or {})
    captures = {}
    for capture in program.captures:
        values = _capture(capture, sizes).to(CAPTURE_DTYPES[capture.dtype])
        if capture.name in chosen:
            values = torch.full_like(values, chosen.pop(capture.name))
        captures[capture.name] = values
    params = {p.name: chosen.pop(p.name, _param(p.name, p.type, sizes)) for p in program.params}
    if chosen:
        known = ", ".join((*captures, *params)) or "none"
        raise SpecError(
            f"explain: expected the name of a capture or run-time param ({known}), "
            f"got {next(iter(chosen))!r}."
        )
    return Example(captures, params)


def _param(name: str, kind: str, sizes: Sizes) -> int | float:
    presets = {"window_left": sizes.seqlen_k // 5, "window_right": 0, "softcap": 30.0}
    if name in presets:
        return presets[name]
    return 1.0 if kind == "float" else math.isqrt(sizes.seqlen_k)


def _capture(capture: ProgramCapture, sizes: Sizes) -> torch.Tensor:
    if capture.block is not None:
        rows, columns = (
            torch.arange(-(-seqlen // size))
            for seqlen, size in zip((sizes.seqlen_q, sizes.seqlen_k), capture.block, strict=True)
        )
        blocks = (rows[:, None] - columns) % 3 == 0
        return blocks.expand(1, sizes.num_heads, *blocks.shape)
    shape = [sizes.of(axis) for axis in capture.dims]
    along = [
        axis
        for axis, dim in enumerate(capture.dims)
        if isinstance(dim, str) and dim.startswith(("seqlen", "total"))
    ]
    grids = torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij")
    positions = [grids[axis] for axis in along]
    length = shape[along[0]] if along else 0
    if capture.dtype == "bool":
        return _bools(positions, shape, length)
    if capture.dtype.startswith("int"):
        return _ints(positions, shape, length, sizes)
    return _floats(positions, grids, shape)


def _bools(positions: list[torch.Tensor], shape: list[int], length: int) -> torch.Tensor:
    if not positions:
        return torch.ones(shape, dtype=torch.bool)
    if len(positions) == 1:
        return positions[0] * BOOL_SHARE < length
    return positions[0] & positions[-1] == positions[-1]  # as a tree's: transitive, j <= i


def _ints(
    positions: list[torch.Tensor], shape: list[int], length: int, sizes: Sizes
) -> torch.Tensor:
    if not positions:
        return torch.full(shape, sizes.seqlen_k // 3)
    if len(positions) == 1:
        return positions[0] * RUNS // max(1, length)
    return (positions[0] - positions[-1]).abs()


def _floats(
    positions: list[torch.Tensor], grids: tuple[torch.Tensor, ...], shape: list[int]
) -> torch.Tensor:
    if not shape:
        return torch.tensor(1.0)
    if not positions:
        waves = torch.ones(shape)
        for axis, (grid, size) in enumerate(zip(grids, shape, strict=True)):
            waves += 0.5 / (1 + axis) * torch.sin(grid * (4 * math.pi / max(1, size)))
        return waves
    if len(positions) == 1:
        return -0.05 * positions[0].float()
    return torch.sin(positions[0] * 0.2) * torch.cos(positions[1] * 0.2)
