"""A configuration of the sm90 family's forward: tiles, threads, registers, shared memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..program import program_for
from ..variant import Variant
from .base import SmemBuffer, round_up, stack

_GROUP_ROWS = 64  # queries of a warpgroup: the M of wgmma
PAGE_COLS = 64  # columns of a page of shared memory; templates/device/swizzled_tile.cuh
_REGISTERS = {1: (56, 248), 2: (40, 232), 3: (32, 160), 4: (32, 112)}
"""By warpgroups that compute: registers of a thread that loads, and of one that computes. What the
block's threads start with, 65536 over their number, is shared out anew."""
_CLASSIFYING = {1: (128, 248), 2: (56, 224), 3: (56, 152), 4: (56, 104)}
"""The same where the loading warps classify tiles."""
_OVERHEAD_REGISTERS = 32  # addresses, row statistics, rings: measured with ptxas
_JOB_BYTES = 48  # sizeof(Job) at most
_WORK_SLOTS = 2


def tile_bytes(rows: int, cols: int) -> int:
    """Size of a tile in shared memory; see templates/device/swizzled_tile.cuh."""
    return rows * round_up(cols, PAGE_COLS) * 2


@dataclass(frozen=True, slots=True)
class Tiles:
    """A configuration that the kernel is compiled in.

    Attributes:
        tile_m: query rows of a block, 64 for each warpgroup that computes.
        tile_n: key rows of a step.
        num_stages: tiles of K, and of V, in flight.
        hold_q: whether a warpgroup holds its queries in registers.
        q_slots: blocks of queries in shared memory.
        chain: whether the next block's first S is begun behind a block's last P V; always so where
            queries are held.
        teams: blocks of queries that a thread block is at, each with warps, tiles and barriers of
            its own: one team's products cover the beginning and the end of the other's.
        block_clocks: what a block of queries costs beside its steps, about.
        step_clocks: what a step costs. The two decide between configurations of one kernel.
    """

    tile_m: int
    tile_n: int
    num_stages: int = 2
    hold_q: bool = False
    q_slots: int = 1
    chain: bool = False
    teams: int = 1
    block_clocks: int = 0
    step_clocks: int = 0

    def __str__(self) -> str:
        words = [f"{self.tile_m}x{self.tile_n}", f"{self.num_stages} stages"]
        words += ["Q in registers"] if self.hold_q else []
        words += [f"{self.q_slots} slots of Q"] if self.q_slots > 1 else []
        words += ["chained"] if self.chain else []
        words += [f"{self.teams} teams"] if self.teams > 1 else []
        return ", ".join(words)


TILES = tuple(f.name for f in fields(Tiles) if not f.name.endswith("_clocks"))
"""The fields of `Tiles` that a plan has too."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """`Tiles` of a variant, with all that follows from them: what the template prints."""

    variant: Variant
    tiles: Tiles

    @property
    def name(self) -> str:
        """Name of its struct."""
        return ("", "Twin")[self.teams - 1] + f"Tiles{self.tile_m}x{self.tile_n}"

    @property
    def purpose(self) -> str:
        """What it is, for the struct's comment."""
        return f"{self.num_groups} warpgroups that compute, {self.tile_n} keys a step"

    @property
    def tile_m(self) -> int:
        """Query rows of a block."""
        return self.tiles.tile_m

    @property
    def tile_n(self) -> int:
        """Key rows of a step."""
        return self.tiles.tile_n

    @property
    def num_stages(self) -> int:
        """Tiles of K, and of V, in flight."""
        return self.tiles.num_stages

    @property
    def hold_q(self) -> bool:
        """Whether Q is in registers."""
        return self.tiles.hold_q

    @property
    def q_slots(self) -> int:
        """Blocks of queries in shared memory."""
        return self.tiles.q_slots

    @property
    def chain(self) -> bool:
        """Whether the next block's first S is begun behind a block's last P V."""
        return self.tiles.chain or self.tiles.hold_q

    @property
    def teams(self) -> int:
        """Blocks of queries that a thread block is at."""
        return self.tiles.teams

    @property
    def num_groups(self) -> int:
        """Warpgroups of a team that compute."""
        return self.tile_m // _GROUP_ROWS

    @property
    def producer_registers(self) -> int:
        """Registers of a thread that loads."""
        return self._registers[0]

    @property
    def consumer_registers(self) -> int:
        """Registers of a thread that computes."""
        return self._registers[1]

    @property
    def _registers(self) -> tuple[int, int]:
        classifies = program_for(self.variant).tile_test is not None
        return (_CLASSIFYING if classifies else _REGISTERS)[self.teams * self.num_groups]

    @property
    def registers_estimate(self) -> int:
        """Accumulators of S and the output, P as operands, held queries, and the overhead."""
        held = round_up(self.variant.head_dim, 16) // 4 if self.hold_q else 0
        scores = self.tile_n // 2 + self.tile_n // 4
        return scores + self.variant.head_dim_v // 2 + held + _OVERHEAD_REGISTERS

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """Tiles first, each 1024-byte aligned, then words and barriers."""
        variant, stages, slots = self.variant, self.num_stages, self.q_slots
        buffers = [
            ("q", slots * tile_bytes(self.tile_m, variant.head_dim), "Q, 64 rows after another"),
            ("k", stages * tile_bytes(self.tile_n, variant.head_dim), f"{stages} tiles of K"),
            ("v", stages * tile_bytes(self.tile_n, variant.head_dim_v), f"{stages} tiles of V"),
            ("jobs", _WORK_SLOTS * _JOB_BYTES, "blocks of queries handed out"),
            ("steps", stages * 4, "what each tile of K is"),
        ]
        barriers = 2 * slots + 2 * _WORK_SLOTS + 4 * stages
        if program_for(variant).tile_test is not None:
            seen = 2 * 4 * self.num_groups * -(-self.tile_n // 32) * 4
            buffers.append(("seen", seen, "keys that each warp's queries see, in bits"))
            barriers += 1
        buffers.append(("barriers", barriers * 8, "mbarriers"))
        return stack(buffers, 16)

    @property
    def team_bytes(self) -> int:
        """From one team's shared memory to the next one's: the map has one team's."""
        return round_up(self._own_bytes, 1024)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a thread block, in bytes."""
        return (self.teams - 1) * self.team_bytes + self._own_bytes

    @property
    def _own_bytes(self) -> int:
        last = self.smem[-1]
        return last.offset_bytes + last.size_bytes
