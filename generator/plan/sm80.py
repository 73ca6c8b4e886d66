"""Variant -> plan of the sm80 family: mma.sync m16n8k16, ldmatrix, cp.async."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..arch import Target
from ..errors import PlanError
from ..ir import Expr, Load, Name, walk
from ..program import Program, ProgramCapture, TileBound, program_for
from ..variant import Variant
from .base import KernelPlan, SmemBuffer, first_legal, legal
from .reads import read_levels

_ELEMENT = {"fp16": "Fp16", "bf16": "Bf16"}
_DL_CODE = {"fp16": "kDLFloat", "bf16": "kDLBfloat"}
_ROW_PADDING = 8  # elements; see templates/device/tile.cuh
_ELEMENT_BYTES = 2
_OVERHEAD_REGISTERS = 48  # addresses, row statistics, operands in flight: measured with ptxas


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def tile_bytes(rows: int, cols: int) -> int:
    """Bytes of a tile in shared memory."""
    return rows * (cols + _ROW_PADDING) * _ELEMENT_BYTES


def _stack(buffers: list[tuple[str, int, str]]) -> tuple[SmemBuffer, ...]:
    """The buffers one after another, each 128-byte aligned."""
    placed, offset = [], 0
    for name, size, purpose in buffers:
        placed.append(SmemBuffer(name, offset, size, purpose))
        offset = _round_up(offset + size, 128)
    return tuple(placed)


def _product(dims: Sequence[str | int]) -> str:
    """How many elements ``dims`` make, in C++ over the WorkspaceSizes ``s``."""
    fields = {"total_q": "seqlen_q", "total_k": "seqlen_k"}
    factors = [d if isinstance(d, int) else f"s.{fields.get(d, d)}" for d in dims]
    return " * ".join(map(str, ("int64_t{1}", *factors)))


def _walks_tiles(program: Program) -> bool:
    return program.tile_test is not None or any(
        bound is not None and not _same_for_all_heads(bound)
        for bound in (program.band.lower, program.band.upper)
    )


def _same_for_all_heads(expr: Expr) -> bool:
    return not any(
        isinstance(node, Load) or (isinstance(node, Name) and node.id in ("h", "h_kv"))
        for node in walk(expr)
    )


@dataclass(frozen=True, kw_only=True)
class Sm80Plan(KernelPlan):
    """What both passes of the family decide.

    Attributes:
        num_warps: warps of a thread block.
        min_blocks: thread blocks that shall fit on a multiprocessor (bounds the registers).
    """

    num_warps: int
    min_blocks: int = 1

    pins: ClassVar[tuple[str, ...]] = ("tile_m", "tile_n", "num_warps", "min_blocks")

    @property
    def copy(self) -> str:
        """The header in templates/device/ that fills tiles."""
        return "copy_async"

    @property
    def padded_qk(self) -> int:
        """head_dim rounded up to the depth of a tensor-core product."""
        return _round_up(self.variant.head_dim, 16)

    @property
    def padded_v(self) -> int:
        """head_dim_v rounded up likewise."""
        return _round_up(self.variant.head_dim_v, 16)

    @property
    def element(self) -> str:
        """The element type in templates/device/element.cuh."""
        return _ELEMENT[self.variant.dtype]

    @property
    def dl_code(self) -> str:
        """The element type's DLPack code."""
        return _DL_CODE[self.variant.dtype]

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Nvcc's flags: native code for the target and PTX for what comes after it."""
        arch = self.target.nvcc_arch.rstrip("a")
        return (
            "-std=c++17",
            "-O3",
            "-lineinfo",
            "--ptxas-options=-v",
            f"-gencode=arch=compute_{arch},code=[sm_{arch},compute_{arch}]",
        )

    @property
    def max_registers(self) -> int:
        """Registers that a thread may have when ``min_blocks`` blocks share a multiprocessor."""
        threads = 32 * self.num_warps * self.min_blocks
        return min(self.target.max_registers, self.target.registers_per_sm // threads // 8 * 8)

    def check(self) -> KernelPlan:
        """This plan, once tiles, registers and shared memory are known to be legal."""
        if self.num_warps < 1 or 32 * self.num_warps > 1024:
            raise PlanError(
                f"plan: {self.name}: expected 1 to 32 warps, got {self.num_warps}. Lower num_warps."
            )
        if self.variant.dropout and (self.tile_m % 16 or self.tile_n % 32):
            raise PlanError(
                f"plan: {self.name}: dropout works on blocks of 16x32, got tile "
                f"{self.tile_m}x{self.tile_n}. Use a multiple."
            )
        if self.registers_estimate > self.max_registers:
            raise PlanError(
                f"plan: {self.name}: tile {self.tile_m}x{self.tile_n} needs about "
                f"{self.registers_estimate} registers a thread, {self.target.name} allows "
                f"{self.max_registers} with {self.min_blocks} block(s) of {self.num_warps} warps. "
                "Lower tile_m or tile_n, or raise num_warps."
            )
        return super().check()


@dataclass(frozen=True, kw_only=True)
class Sm80ForwardPlan(Sm80Plan):
    """Forward: warps are stacked on the queries, K and V have one stage each."""

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """Q (later the output), K and V, one stage each: K(i - 1) loads while V(i) is used."""
        q_bytes = tile_bytes(self.tile_m, max(self.padded_qk, self.padded_v))
        buffers = [
            ("q", q_bytes, "Q, then the output"),
            ("k", tile_bytes(self.tile_n, self.padded_qk), "one tile of K"),
            ("v", tile_bytes(self.tile_n, self.padded_v), "one tile of V"),
        ]
        if self.stats_in_smem:
            stats_bytes = 32 * self.num_warps * (self.tile_m // (16 * self.num_warps)) * 16
            buffers.append(("stats", stats_bytes, "maximum and sum of each row, between steps"))
        if self.program.tile_test is not None:
            seen_bytes = self.num_warps * -(-self.tile_n // 32) * 4
            buffers.append(("seen", seen_bytes, "the keys that each warp's queries see, as bits"))
        if self.variant.layout == "varlen":
            buffers.append(("position", 32, "which queries the block owns"))
        return _stack(buffers)

    @property
    def stats_in_smem(self) -> bool:
        """Whether the row statistics leave their registers between two steps."""
        if self.variant.layout == "varlen" and self.target.capability >= (10, 0):
            return True  # else it spills there; on sm90 it spills with them
        reads = self.program.tile_test is not None and bool(self.program.captures)
        return self.program.score is not None or reads

    @property
    def registers_estimate(self) -> int:
        """Accumulators of the output and the scores, and the overhead."""
        rows = self.tile_m // self.num_warps
        return rows * (self.padded_v + self.tile_n) // 32 + _OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once its tiles divide among the warps."""
        if self.tile_m % (16 * self.num_warps) or self.tile_n % 16 or self.tile_n < 16:
            raise PlanError(
                f"plan: {self.name}: expected tile_m in multiples of {16 * self.num_warps} "
                f"(16 rows a warp) and tile_n in multiples of 16, got "
                f"{self.tile_m}x{self.tile_n}."
            )
        return super().check()


@dataclass(frozen=True, kw_only=True)
class Sm80BackwardPlan(Sm80Plan):
    """Backward: a thread block owns keys, warps are stacked on them, and walks the queries.

    Attributes:
        head_splits: warps that share 16 keys, each with that part of dK's and dV's columns; above
            1 they repeat the scores so that the accumulators fit in registers.
        num_stages: tiles of Q and dO in flight.
        dq_tile_n: keys of a step of the separate dQ kernel (deterministic variants).
    """

    head_splits: int = 1
    num_stages: int = 2
    dq_tile_n: int = 32

    pins: ClassVar[tuple[str, ...]] = (*Sm80Plan.pins, "head_splits", "num_stages", "dq_tile_n")

    @property
    def walks_tiles(self) -> bool:
        """Whether tiles of queries are classified one by one, not bounds of one loop."""
        return _walks_tiles(self.program)

    @property
    def hides_keys(self) -> bool:
        """Whether a key may be hidden from every query: not with bottom-right causal alone."""
        mask = self.program.mask
        return mask is not None and mask != program_for(Variant(8, 8, "fp16", causal=True)).mask

    @property
    def learned(self) -> tuple[ProgramCapture, ...]:
        """The captures that have a gradient."""
        return tuple(capture for capture in self.program.captures if capture.grad)

    @property
    def sums_over_keys(self) -> bool:
        """Whether some gradient of a capture has an entry for each query."""
        return any(site.level == "row" for site in self.program.gradients)

    @property
    def sums_over_queries(self) -> bool:
        """Whether some gradient of a capture has an entry for each head or key."""
        return any(site.level in ("head", "column") for site in self.program.gradients)

    def elements_of(self, capture: ProgramCapture) -> str:
        """Elements of a capture, in C++ over the WorkspaceSizes ``s``."""
        return _product(capture.dims)

    def slices_of(self, bound: TileBound) -> str:
        """Elements of a capture for each position, in C++ over the WorkspaceSizes ``s``."""
        dims = bound.capture.dims
        return _product(dims[: bound.dim] + dims[bound.dim + 1 :])

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """K and V for good, Q and dO in stages, dS to change hands between warps."""
        stages = self.num_stages
        buffers = [
            ("k", tile_bytes(self.tile_n, self.padded_qk), "K, then dK"),
            ("v", tile_bytes(self.tile_n, self.padded_v), "V, then dV"),
            ("q", stages * tile_bytes(self.tile_m, self.padded_qk), f"{stages} tiles of Q"),
            ("dout", stages * tile_bytes(self.tile_m, self.padded_v), f"{stages} tiles of dO"),
            ("lse", stages * self.tile_m * 4, f"{stages} tiles of lse"),
            ("delta", stages * self.tile_m * 4, f"{stages} tiles of delta"),
        ]
        if not self.variant.deterministic:
            buffers.append(("ds", tile_bytes(self.tile_n, self.tile_m), "dS, transposed"))
        if self.variant.dropout:
            keep_bytes = self.tile_m * self.tile_n // 8
            buffers.append(("keep", keep_bytes, "dropout's keep bits"))
        return _stack(buffers)

    @property
    def loads_ahead(self) -> bool:
        """Whether the next step's tiles are on their way during a step, not only from its end."""
        return self.num_stages > 1

    @property
    def dq_tile_m(self) -> int:
        """Queries of a thread block of the separate dQ kernel."""
        return 64

    @property
    def dq_warps_m(self) -> int:
        """Warps along the queries in dQ's product, 16 rows each; the others split its columns."""
        return self.tile_m // 16

    @property
    def registers_estimate(self) -> int:
        """Accumulators of dK, dV, S, dP and S as it was where that is needed, and the overhead."""
        columns = (self.padded_qk + self.padded_v) / self.head_splits
        scores = 3 if self.program.score_needed else 2
        return int(16 * (columns + scores * self.tile_m) / 32) + _OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once its tiles divide among the warps."""
        if self.num_warps % self.head_splits or (
            self.tile_n != 16 * self.num_warps // self.head_splits
        ):
            raise PlanError(
                f"plan: {self.name}: expected tile_n = 16 * num_warps / head_splits, got "
                f"{self.tile_n}, {self.num_warps} and {self.head_splits}."
            )
        step = 32 if self.variant.dropout else 16
        if self.dq_tile_n % step:
            raise PlanError(
                f"plan: {self.name}: expected dq_tile_n in multiples of {step}, got "
                f"{self.dq_tile_n}."
            )
        if self.tile_m % 16 or self.num_warps % (self.tile_m // 16):
            raise PlanError(
                f"plan: {self.name}: expected tile_m = 16 times a divisor of {self.num_warps} "
                f"warps, got {self.tile_m}."
            )
        return super().check()


def plan(variant: Variant, pass_name: str, target: Target, family: str, reason: str) -> Sm80Plan:
    """The shipped plan: the first legal candidate."""
    found = candidates(variant, pass_name, target, family, reason)
    return first_legal(found, variant, pass_name, target)


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm80Plan]:
    """Every legal plan, best first."""
    forward = pass_name == "forward"
    kind = Sm80ForwardPlan if forward else Sm80BackwardPlan
    shapes = _forward if forward else _backward
    return legal(
        kind(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            **tiles,
        )
        for tiles in shapes(variant, target)
    )


def _forward(variant: Variant, target: Target) -> Iterator[dict[str, int]]:
    """Tiles in order of preference.

    Rows per warp first, since each K and V fragment is then used twice; above 128 columns two row
    blocks a warp no longer fit. On an H200, causal, seqlen 4096, d128: 64 keys a step 300 TFLOP/s,
    48 keys 298, 32 keys 269, 64 rows x 64 keys 250 (three resident 273), 8 warps 234 (2026-12).

    A program's loads are in flight for several elements at once, which takes registers: one row
    block a warp where the score reads a tensor at each element (with nvcc 13.0, 60 bytes spill at
    d80 else) or, above 96 columns, at a row or a column (4 bytes at d128); and there from sm100 up,
    whose compiler asks for more of them ahead, where the mask does.
    """
    columns = max(variant.head_dim, variant.head_dim_v)
    reads = read_levels(program_for(variant))
    shapes = [(128, 64, 4), (128, 32, 4), (128, 64, 8), (64, 64, 4), (64, 32, 4)]
    if columns > 128:
        shapes = [(128, 64, 8), (64, 64, 4), (64, 32, 4)]
    elif (columns > 64 and "score" in reads) or (
        columns > 96 and ("line" in reads or (reads and target.capability >= (10, 0)))
    ):
        shapes.insert(0, shapes.pop(2))
    elif columns > 96 and variant.dropout:  # 64 keys and random bits spill
        del shapes[0]
    for tile_m, tile_n, num_warps in shapes:
        yield {"tile_m": tile_m, "tile_n": tile_n, "num_warps": num_warps}


def _has_wide_gradient(program: Program) -> bool:
    """Whether a gradient of three dimensions or more is added to for each pair: long addresses."""
    return any(s.level == "element" and len(s.capture.dims) > 2 for s in program.gradients)


def _backward(variant: Variant, target: Target) -> Iterator[dict[str, int]]:
    """Tiles in order of preference; above 128 columns two warps share their keys' columns."""
    columns = max(variant.head_dim, variant.head_dim_v)
    if columns <= 128:
        shapes = [(64, 8, 1, 2), (32, 8, 1, 2), (32, 4, 1, 2), (32, 4, 1, 1)]
        program = program_for(variant)
        plain = program.score is None and not _walks_tiles(program)
        unmasked = program.mask is None or bool(program.params)  # params: a register too many
        older = target.capability < (9, 0) and unmasked
        if columns > 112 and (older or not plain):
            shapes[:2] = shapes[1::-1]  # 64 queries spill, one register if plain; nvcc 13.0
        if columns > 112 and target.capability >= (9, 0) and _has_wide_gradient(program):
            shapes.insert(0, (16, 8, 1, 2))  # 32 queries spill three registers
    elif columns <= 192:
        shapes = [(64, 8, 2, 1), (32, 8, 2, 2), (32, 8, 2, 1), (32, 4, 2, 1), (16, 4, 2, 1)]
    else:  # 64 queries spill
        shapes = [(32, 8, 2, 2), (64, 8, 2, 1), (32, 8, 2, 1), (32, 4, 2, 1), (16, 4, 2, 1)]
    for tile_m, num_warps, head_splits, num_stages in shapes:
        yield {
            "tile_m": tile_m,
            "tile_n": 16 * num_warps // head_splits,
            "num_warps": num_warps,
            "head_splits": head_splits,
            "num_stages": num_stages,
        }
