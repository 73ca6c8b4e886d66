"""Program + example -> TileMap: which tiles of a call are empty, partial or full."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..generator.program import Program
from .evaluate import Scope, evaluate
from .examples import Example, Sizes

EMPTY, PARTIAL, FULL = 0, 1, 2
CLASS_NAMES = ("empty", "partial", "full")
CLASS_MARKS = ".+#"
"""How text shows each class, in the order of their numbers."""
_CHUNK_ELEMS = 1 << 22  # int64 values held at once: 32 MiB for each name of the program


@dataclass(frozen=True, eq=False, slots=True)
class TileMap:
    """One head's tiles of one sequence.

    Attributes:
        sizes: of the call.
        tile_m: queries of a tile.
        tile_n: keys of a tile.
        visible: share of each tile's elements that the mask lets through, fp64
            (q tiles, kv tiles): counted, element by element.
        kernel: classes that a kernel gives to the tiles, uint8 (q tiles, kv tiles); None where
            they are the counted ones, or unknown. Judging by intervals, it may take an empty or
            full tile for a partial one, as in 2-D neighbourhoods; never the other way.
    """

    sizes: Sizes
    tile_m: int
    tile_n: int
    visible: torch.Tensor
    kernel: torch.Tensor | None = None

    @property
    def counted(self) -> torch.Tensor:
        """EMPTY, PARTIAL or FULL of each tile, uint8 (q tiles, kv tiles)."""
        partial = torch.full_like(self.visible, PARTIAL, dtype=torch.uint8)
        return partial.masked_fill(self.visible == 0, EMPTY).masked_fill(self.visible == 1, FULL)

    @property
    def classes(self) -> torch.Tensor:
        """The kernel's classes where they are known, else the counted ones."""
        return self.counted if self.kernel is None else self.kernel

    @property
    def unseen(self) -> int:
        """How many empty or full tiles the kernel takes for partial ones."""
        return int((self.classes != self.counted).sum())

    def share(self, number: int) -> float:
        """The share of the tiles whose class is ``number``; 0 where there are none."""
        classes = self.classes
        return (classes == number).double().mean().item() if classes.numel() else 0.0

    @property
    def visible_share(self) -> float:
        """The share of all (query, key) pairs that the mask lets through."""
        rows = _tile_lengths(self.sizes.seqlen_q, self.tile_m)
        columns = _tile_lengths(self.sizes.seqlen_k, self.tile_n)
        total = max(1, self.sizes.seqlen_q * self.sizes.seqlen_k)
        return float((rows @ self.visible @ columns).item()) / total

    def lines(self) -> list[str]:
        """The map as text: a line for each tile of queries, a mark for each tile of keys."""
        return ["".join(CLASS_MARKS[number] for number in row) for row in self.classes.tolist()]


def tile_map(
    program: Program, example: Example, sizes: Sizes, tile_m: int = 128, tile_n: int = 128,
    head: int = 0,
) -> TileMap:  # fmt: skip
    """The tiles of head ``head`` of the one sequence that ``example`` is for.

    Takes seqlen_q * seqlen_k steps, in chunks.
    """
    q_tiles, kv_tiles = -(-sizes.seqlen_q // tile_m), -(-sizes.seqlen_k // tile_n)
    visible = torch.zeros(q_tiles, kv_tiles, dtype=torch.float64)
    for tile in range(q_tiles):
        rows = range(tile * tile_m, min((tile + 1) * tile_m, sizes.seqlen_q))
        counts = torch.zeros(sizes.seqlen_k, dtype=torch.float64)
        step = max(1, _CHUNK_ELEMS // max(1, sizes.seqlen_k))
        for first in range(rows.start, rows.stop, step):
            part = range(first, min(first + step, rows.stop))
            counts += mask_of(program, example, sizes, part, range(sizes.seqlen_k), head).sum(0)
        padded = torch.nn.functional.pad(counts, (0, kv_tiles * tile_n - sizes.seqlen_k))
        visible[tile] = padded.view(kv_tiles, tile_n).sum(1) / len(rows)
    visible /= _tile_lengths(sizes.seqlen_k, tile_n)
    return TileMap(sizes, tile_m, tile_n, visible)


def mask_of(
    program: Program, example: Example, sizes: Sizes, queries: range, keys: range, head: int = 0
) -> torch.Tensor:
    """What these queries see of these keys: bool (queries, keys). Ranges may have steps."""
    shape = (len(queries), len(keys))
    if program.mask is None:
        return torch.ones(shape, dtype=torch.bool)
    found = evaluate(program.mask, _scope(example, sizes, queries, keys, head))
    return found.expand(1, 1, *shape)[0, 0]


def score_of(
    program: Program, example: Example, sizes: Sizes, queries: range, keys: range, head: int = 0
) -> torch.Tensor:
    """What a score of 1 becomes for these queries and keys: fp64 (queries, keys)."""
    shape = (len(queries), len(keys))
    if program.score is None:
        return torch.ones(shape, dtype=torch.float64)
    found = evaluate(program.score, _scope(example, sizes, queries, keys, head))
    return found.expand(1, 1, *shape)[0, 0]


def _scope(example: Example, sizes: Sizes, queries: range, keys: range, head: int) -> Scope:
    return Scope(
        b=torch.zeros(1, 1, 1, 1, dtype=torch.int64),
        h=torch.full((1, 1, 1, 1), head),
        h_kv=torch.full((1, 1, 1, 1), head),
        q_idx=torch.tensor(queries).view(1, 1, -1, 1),
        kv_idx=torch.tensor(keys).view(1, 1, 1, -1),
        q_len=sizes.seqlen_q,
        kv_len=sizes.seqlen_k,
        num_heads=sizes.num_heads,
        score=torch.ones(1, 1, 1, 1, dtype=torch.float64),
        captures=example.captures,
        params=example.params,
    )


def _tile_lengths(seqlen: int, tile: int) -> torch.Tensor:
    """Elements of each tile: the last may be a short one."""
    firsts = torch.arange(0, seqlen, tile)
    return (seqlen - firsts).clamp(max=tile).double()
