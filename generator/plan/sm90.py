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
    round_up,
    stack,
)

MAP_TYPE = {
    "fp16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "bf16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
}
_GROUP_ROWS = 64  # queries of a warpgroup: the M of wgmma
PAGE_COLS = 64  # columns of a page of shared memory; templates/device/swizzled_tile.cuh
_REGISTERS = {1: (56, 248), 2: (40, 232), 3: (32, 160)}
"""By warpgroups that compute: registers of a thread that loads, and of one that computes. What the
block's threads start with, 65536 over their number, is shared out anew."""
_CLASSIFYING = {1: (128, 248), 2: (56, 224), 3: (56, 152)}
"""The same where the loading warps classify tiles."""
_OVERHEAD_REGISTERS = 32  # addresses, row statistics, rings: measured with ptxas
_JOB_BYTES = 48  # sizeof(Job) at most
_WORK_SLOTS = 2


def tile_bytes(rows: int, cols: int) -> int:
    """Size of a tile in shared memory; see templates/device/swizzled_tile.cuh."""
    return rows * round_up(cols, PAGE_COLS) * 2


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


@dataclass(frozen=True, slots=True)
class Tiles:
    """A configuration that the kernel is compiled in.

    Attributes:
        tile_m: query rows of a block, 64 for each warpgroup that computes.
        tile_n: key rows of a step.
        num_stages: tiles of K, and of V, in flight.
        hold_q: whether a warpgroup holds its queries in registers.
        block_clocks: what a block of queries costs beside its steps, about.
        step_clocks: what a step costs. The two decide between configurations of one kernel.
    """

    tile_m: int
    tile_n: int
    num_stages: int = 2
    hold_q: bool = False
    block_clocks: int = 0
    step_clocks: int = 0

    def __str__(self) -> str:
        held = ", Q in registers" if self.hold_q else ""
        return f"{self.tile_m}x{self.tile_n}, {self.num_stages} stages{held}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """`Tiles` of a variant, with all that follows from them: what the template prints."""

    variant: Variant
    tiles: Tiles

    @property
    def name(self) -> str:
        """Name of its struct."""
        return f"Tiles{self.tile_m}x{self.tile_n}"

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
    def num_groups(self) -> int:
        """Warpgroups that compute."""
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
        return (_CLASSIFYING if classifies else _REGISTERS)[self.num_groups]

    @property
    def registers_estimate(self) -> int:
        """Accumulators of S and the output, P as operands, held queries, and the overhead."""
        held = round_up(self.variant.head_dim, 16) // 4 if self.hold_q else 0
        scores = self.tile_n // 2 + self.tile_n // 4
        return scores + self.variant.head_dim_v // 2 + held + _OVERHEAD_REGISTERS

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """Tiles first, each 1024-byte aligned, then words and barriers."""
        variant, stages = self.variant, self.num_stages
        buffers = [
            ("q", tile_bytes(self.tile_m, variant.head_dim), "Q, 64 rows after another"),
            ("k", stages * tile_bytes(self.tile_n, variant.head_dim), f"{stages} tiles of K"),
            ("v", stages * tile_bytes(self.tile_n, variant.head_dim_v), f"{stages} tiles of V"),
            ("jobs", _WORK_SLOTS * _JOB_BYTES, "blocks of queries handed out"),
            ("steps", stages * 4, "what each tile of K is"),
        ]
        barriers = 2 + 2 * _WORK_SLOTS + 4 * stages
        if program_for(variant).tile_test is not None:
            seen = 2 * 4 * self.num_groups * -(-self.tile_n // 32) * 4
            buffers.append(("seen", seen, "keys that each warp's queries see, in bits"))
            barriers += 1
        buffers.append(("barriers", barriers * 8, "mbarriers"))
        return stack(buffers, 16)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a thread block, in bytes."""
        last = self.smem[-1]
        return last.offset_bytes + last.size_bytes


@dataclass(frozen=True, kw_only=True)
class Sm90ForwardPlan(KernelPlan):
    """Forward: a warpgroup loads, two or three compute 64 queries each.

    Attributes:
        num_stages: tiles of K, and of V, in flight.
        hold_q: whether a warpgroup holds its queries in registers.
        choice: the configurations that a call chooses from by its sizes, the first as above; empty
            where there is one.
    """

    num_stages: int = 2
    hold_q: bool = False
    choice: tuple[Tiles, ...] = ()

    pins: ClassVar[tuple[str, ...]] = ("tile_m", "tile_n", "num_stages", "hold_q")

    @property
    def configs(self) -> tuple[Configuration, ...]:
        """The configurations that are compiled."""
        own = Tiles(self.tile_m, self.tile_n, self.num_stages, self.hold_q)
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
        """The map of the first configuration."""
        return self.configs[0].smem

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
        for config in self.configs:
            if config.registers_estimate > config.consumer_registers:
                raise PlanError(
                    f"plan: {self.name}: tile {config.tile_m}x{config.tile_n} needs about "
                    f"{config.registers_estimate} registers a thread, {config.num_groups} "
                    f"warpgroups have {config.consumer_registers}. Lower tile_n or tile_m."
                )
        return super().check()


def plan(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Sm90ForwardPlan:
    """The shipped plan: the first legal candidate."""
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm90ForwardPlan]:
    """Every legal plan, best first."""
    return legal(
        Sm90ForwardPlan(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            tile_m=choice[0].tile_m,
            tile_n=choice[0].tile_n,
            num_stages=choice[0].num_stages,
            hold_q=choice[0].hold_q,
            choice=choice if len(choice) > 1 else (),
        )
        for choice in _forward(variant)
    )


_D64 = (Tiles(192, 128, 3, False, 4000, 2381), Tiles(128, 128, 2, True, 3000, 1829))
"""Two warpgroups where sequences are short, three where they are long, which load less from the L2
cache for each product. Clocks: H200, 2026-12, prototype kernels of these shapes."""


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
            yield _D64
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
