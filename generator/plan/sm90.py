"""Variant -> plan of the sm90 family's forward: wgmma, TMA, warp specialisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..arch import Target
from ..errors import PlanError
from ..ir import Expr, Load, walk
from ..program import program_for
from ..variant import Variant
from .base import (
    ELEMENTS,
    KernelPlan,
    SmemBuffer,
    first_legal,
    hides_keys,
    legal,
    native_flags,
)
from .sm90_tiles import TILES, Configuration, Tiles
from .sm90_untried import untried

MAP_TYPE = {
    "fp16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "bf16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
}


@dataclass(frozen=True, slots=True)
class Product:
    """One width of wgmma, rendered as a function of its own.

    Attributes:
        name: the function.
        width: columns of the result.
        a_in_registers: whether A comes in registers, else in shared memory.
        transposed: whether B lies in shared memory with its columns contiguous.
        purpose: what the kernel computes with it.
        a_transposed: whether A lies in shared memory with its rows contiguous.
    """

    name: str
    width: int
    a_in_registers: bool
    transposed: bool
    purpose: str
    a_transposed: bool = False


@dataclass(frozen=True, kw_only=True)
class Sm90ForwardPlan(KernelPlan):
    """Forward: a warpgroup loads, two or three compute 64 queries each.

    Attributes:
        num_stages: tiles of K, and of V, in flight.
        hold_q: whether a warpgroup holds its queries in registers.
        q_slots: blocks of queries in shared memory.
        chain: whether the next block's first S is begun behind a block's last P V.
        teams: blocks of queries that a thread block is at.
        choice: the configurations that a call chooses from by its sizes, the first as above; empty
            where there is one.
    """

    num_stages: int = 2
    hold_q: bool = False
    q_slots: int = 1
    chain: bool = False
    teams: int = 1
    choice: tuple[Tiles, ...] = ()

    pins: ClassVar[tuple[str, ...]] = TILES

    @property
    def configs(self) -> tuple[Configuration, ...]:
        """The configurations that are compiled."""
        own = Tiles(**{name: getattr(self, name) for name in TILES})
        return tuple(Configuration(self.variant, tiles) for tiles in self.choice or (own,))

    @property
    def element(self) -> str:
        """The element type in templates/device/element.cuh."""
        return ELEMENTS[self.variant.dtype]

    @property
    def tensor_map_type(self) -> str:
        """The element type of a tensor map."""
        return MAP_TYPE[self.variant.dtype]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Nvcc's flags: sm_90a has no PTX for what comes after it."""
        return native_flags(self.target)

    @property
    def dynamic(self) -> bool:
        """Whether blocks of queries differ in work, and are taken from a counter."""
        return self.program.mask is not None or self.variant.layout == "varlen"

    @property
    def cleans(self) -> bool:
        """Whether a tile may have rows of V that no query sees."""
        return self.variant.layout == "varlen" or self.hides_keys

    @property
    def most_teams(self) -> int:
        """Teams of the configuration that has most."""
        return max(config.teams for config in self.configs)

    @property
    def holds_q(self) -> str:
        """Which configurations hold Q: "all", "none" or "some"."""
        held = {config.hold_q for config in self.configs}
        return "some" if len(held) == 2 else "all" if held == {True} else "none"

    @property
    def products(self) -> tuple[Product, ...]:
        """Every product of every configuration."""
        found = []
        for config in self.configs:
            if config.hold_q:
                found.append(
                    Product("wgmma_held_qk", config.tile_n, True, False, "S, Q in registers")
                )
            else:
                found.append(Product("wgmma_qk", config.tile_n, False, False, "S"))
        found.append(Product("wgmma_pv", self.variant.head_dim_v, True, True, "the output"))
        return tuple(dict.fromkeys(found))

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """The map of the first configuration, of one team."""
        return self.configs[0].smem

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a thread block, in bytes."""
        return max(config.smem_bytes for config in self.configs)

    @property
    def registers_estimate(self) -> int:
        """Registers of a thread that computes."""
        return max(config.registers_estimate for config in self.configs)

    def describe(self) -> dict[str, Any]:
        """The plan as plain data; the configurations to choose from in words."""
        return super().describe() | {"choice": [str(tiles) for tiles in self.choice]}

    def pinned(self, pins: Mapping[str, Any]) -> KernelPlan:
        """This plan with the fields of a spec's ``tuning:`` block; then there is no choice."""
        found = super().pinned(pins)
        assert isinstance(found, Sm90ForwardPlan)
        return replace(found, choice=()) if pins else found

    def check(self) -> KernelPlan:
        """This plan, once tiles, registers and shared memory are known to be legal."""
        if self.tile_m not in (64, 128, 192):
            raise PlanError(
                f"plan: {self.name}: expected tile_m 64, 128 or 192 (64 rows a warpgroup), got "
                f"{self.tile_m}."
            )
        step = 32 if self.variant.dropout else 16
        if self.tile_n % step or not step <= self.tile_n <= 256:
            raise PlanError(
                f"plan: {self.name}: expected tile_n in multiples of {step} up to 256, got "
                f"{self.tile_n}."
            )
        self._check_warps()
        for config in self.configs:
            if config.registers_estimate > config.consumer_registers:
                raise PlanError(
                    f"plan: {self.name}: tile {config.tile_m}x{config.tile_n} needs about "
                    f"{config.registers_estimate} registers a thread, {config.num_groups} "
                    f"warpgroups have {config.consumer_registers}. Lower tile_n or tile_m."
                )
        return super().check()

    def _check_warps(self) -> None:
        """Two warps load for each team, and five warpgroups have registers."""
        if self.teams not in (1, 2) or self.teams * self.tile_m // 64 > 4:
            raise PlanError(
                f"plan: {self.name}: expected 1 or 2 teams and up to 4 warpgroups that compute, "
                f"got {self.teams} teams of {self.tile_m // 64}. Lower tile_m or teams."
            )
        if self.q_slots not in (1, 2):
            raise PlanError(f"plan: {self.name}: expected 1 or 2 q_slots, got {self.q_slots}.")


def plan(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Sm90ForwardPlan:
    """The shipped plan: the first legal candidate."""
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm90ForwardPlan]:
    """Every legal plan, best first; at the end what no GPU has timed yet."""
    return legal(
        Sm90ForwardPlan(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            choice=choice if len(choice) > 1 else (),
            **{name: getattr(choice[0], name) for name in TILES},
        )
        for choice in (*_forward(variant), *untried(variant))
    )


_D64 = (
    Tiles(192, 128, 3, block_clocks=3500, step_clocks=2590),
    Tiles(128, 64, 4, q_slots=2, chain=True, teams=2, block_clocks=3970, step_clocks=1940),
)
_D64_CAUSAL = (
    Tiles(192, 128, 3, block_clocks=4060, step_clocks=2774),
    Tiles(128, 64, 4, teams=2, block_clocks=3970, step_clocks=1940),
)
"""Two teams where sequences are short; where they are long three warpgroups, which load less
from the L2 cache for each product. Clocks at 1.75 GHz: NVIDIA H200, 2026-12-03, 512 to 4096.
"""


def _forward(variant: Variant) -> Iterator[tuple[Tiles, ...]]:
    """Configurations in order of preference.

    Three warpgroups have 160 registers a thread; what a program or dropout keeps for an element
    asks for two with 232. A score's loads from tensors are in flight for many elements at once:
    fewer keys a step then.
    """
    columns = max(variant.head_dim, variant.head_dim_v)
    program = program_for(variant)
    if program.score is not None or program.tile_test is not None or variant.dropout:
        widest = 48 if program.tile_test is not None and columns > 192 else 128
        if _reads_tensors(program.score) or (variant.dropout and columns > 128):
            widest = 64 if columns <= 192 else 32
        yield from ((Tiles(128, n),) for n in (128, 96, 64, 48, 32) if n <= widest)
        return
    if variant.layout != "varlen" and not hides_keys(program):
        if 48 < columns <= 64:
            yield _D64 if program.mask is None else _D64_CAUSAL
    packed_window = variant.layout == "varlen" and program.mask is not None
    if columns <= 64 and not packed_window:
        yield (Tiles(192, 128, 3),)
    if columns <= 96 and not packed_window:
        yield (Tiles(192, 96),)
    if columns <= 128:
        yield (Tiles(128, 128, hold_q=True),)
        yield (Tiles(192, 80, 3),)
        yield (Tiles(192, 80),)
    if columns > 192:
        yield (Tiles(128, 64),)
    yield from ((Tiles(128, n),) for n in (128, 112, 96, 80, 64, 48, 32))


def _reads_tensors(root: Expr | None) -> bool:
    return root is not None and any(isinstance(node, Load) for node in walk(root))
