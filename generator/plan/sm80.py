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
from .base import KernelPlan, SmemBuffer

_ELEMENT = {"fp16": "Fp16", "bf16": "Bf16"}
_DL_CODE = {"fp16": "kDLFloat", "bf16": "kDLBfloat"}
_ROW_PADDING = 8  # elements; see templates/device/tile.cuh
_ELEMENT_BYTES = 2
_OVERHEAD_REGISTERS = 48  # addresses, row statistics, operands in flight: measured with ptxas


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _tile_bytes(rows: int, cols: int) -> int:
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
        # A multiprocessor has 1 KB more than a block may have, which each block costs.
        of_blocks = self.min_blocks * (self.smem_bytes + 1024)
        if self.min_blocks > 1 and of_blocks > self.target.max_smem_bytes + 1024:
            raise PlanError(
                f"plan: {self.name}: {self.min_blocks} block(s) of {self.smem_bytes} bytes of "
                f"shared memory don't fit a multiprocessor of {self.target.name}. Lower "
                "min_blocks, tile_n or num_stages."
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
    """Forward: warps are stacked on the queries, K and V have one stage each.

    Attributes:
        key_splits: warps that share queries; each scores that part of a step's keys and owns that
            part of the output's columns, and shared memory takes P to the others.
    """

    key_splits: int = 1

    pins: ClassVar[tuple[str, ...]] = (*Sm80Plan.pins, "key_splits")

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """Q (later the output), K and V, one stage each: K(i - 1) loads while V(i) is used."""
        q_bytes = _tile_bytes(self.tile_m, max(self.padded_qk, self.padded_v))
        buffers = [
            ("q", q_bytes, "Q, then the output"),
            ("k", _tile_bytes(self.tile_n, self.padded_qk), "one tile of K"),
            ("v", _tile_bytes(self.tile_n, self.padded_v), "one tile of V"),
        ]
        if self.key_splits > 1:
            buffers += [
                ("p", _tile_bytes(self.tile_m, self.tile_n), "P, to change hands"),
                ("rows", 4 * self.key_splits * self.tile_m, "row maxima, then sums, of each part"),
            ]
        if self.stats_in_smem:
            stats_bytes = 32 * self.tile_m * self.key_splits
            buffers.append(("stats", stats_bytes, "maximum and sum of each row, between steps"))
        if self.program.tile_test is not None:
            seen_bytes = self.num_warps // self.key_splits * -(-self.tile_n // 32) * 4
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
        columns = 16 * -(-self.padded_v // (16 * self.key_splits)) + self.tile_n // self.key_splits
        return self.tile_m * self.key_splits // self.num_warps * columns // 32 + _OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once its tiles divide among the warps."""
        rows = 16 * self.num_warps // self.key_splits
        step = 16 if self.key_splits == 1 else 32 * self.key_splits
        if self.num_warps % self.key_splits or self.tile_m % rows or self.tile_n % step:
            raise PlanError(
                f"plan: {self.name}: expected tile_m in multiples of {rows} (16 rows a warp) and "
                f"tile_n in multiples of {step}, got {self.tile_m}x{self.tile_n}."
            )
        return super().check()


@dataclass(frozen=True, kw_only=True)
class Sm80BackwardPlan(Sm80Plan):
    """Backward: a thread block owns keys, warps are stacked on them, and walks the queries.

    Attributes:
        key_atoms: blocks of 16 keys of a warp.
        head_splits: warps that share keys, each with that part of dK's and dV's columns; each
            scores that part of the queries, and shared memory takes P and dS to the others.
        score_splits: parts of its queries that a warp scores one after another.
        num_stages: tiles of Q and dO in flight.
        dq_tile_n: keys of a step of the separate dQ kernel (deterministic variants).
    """

    key_atoms: int = 1
    head_splits: int = 1
    score_splits: int = 1
    num_stages: int = 2
    dq_tile_n: int = 32

    pins: ClassVar[tuple[str, ...]] = (
        *Sm80Plan.pins,
        *("key_atoms", "head_splits", "score_splits", "num_stages", "dq_tile_n"),
    )

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
            ("k", _tile_bytes(self.tile_n, self.padded_qk), "K, then dK"),
            ("v", _tile_bytes(self.tile_n, self.padded_v), "V, then dV"),
            ("q", stages * _tile_bytes(self.tile_m, self.padded_qk), f"{stages} tiles of Q"),
            ("dout", stages * _tile_bytes(self.tile_m, self.padded_v), f"{stages} tiles of dO"),
            ("lse", stages * self.tile_m * 4, f"{stages} tiles of lse"),
            ("delta", stages * self.tile_m * 4, f"{stages} tiles of delta"),
        ]
        if self.head_splits > 1:
            buffers.append(("p", _tile_bytes(self.tile_n, self.tile_m), "P, transposed"))
        if self.stores_ds:
            buffers.append(("ds", _tile_bytes(self.tile_n, self.tile_m), "dS, transposed"))
        if self.walks_tiles:
            walk_bytes = 32 * self.num_warps * self.walk_bytes
            buffers.append(("walk", walk_bytes, "which tiles come next, of each thread"))
        if self.program.score_needed:
            score_bytes = 4 * self.score_m * 16 * self.key_atoms * self.num_warps
            buffers.append(("scores", score_bytes, "S of each lane, for the derivative"))
        if self.variant.dropout:
            keep_bytes = self.tile_m * self.tile_n // 4
            buffers.append(("keep", keep_bytes, "dropout's keep bits"))
        return _stack(buffers)

    @property
    def walk_bytes(self) -> int:
        """Size of a QueryWalk: the block's position and the walk, in ints."""
        return 4 * ((8 if self.variant.layout == "varlen" else 6) + 5)

    @property
    def stores_ds(self) -> bool:
        """Whether other warps read a warp's dS: for dQ, or for their columns of dK."""
        return not self.variant.deterministic or self.head_splits > 1

    @property
    def score_m(self) -> int:
        """Queries whose scores a warp holds at once."""
        return self.tile_m // (self.head_splits * self.score_splits)

    @property
    def dq_atoms(self) -> int:
        """Blocks of 16 queries of a warp in dQ's product; other warps have other columns.

        Of those that give the busiest warp least to multiply, the one that reads least. A
        deterministic variant's dQ kernel has all columns in a warp.
        """
        if self.variant.deterministic:
            return 2 if self.padded_qk <= 128 and self.program.score is None else 1
        legal = [n for n in (1, 2, 4) if self._dq_blocks(n)]
        return min(legal, key=lambda n: (n * self._dq_blocks(n), n + self._dq_blocks(n)), default=1)

    @property
    def dq_tile_m(self) -> int:
        """Queries of a thread block of the separate dQ kernel: four warps' rows."""
        return max(64 * self.dq_atoms, self.tile_m)

    @property
    def dq_stages(self) -> int:
        """Tiles of K and V in flight there, as many as two thread blocks of it have room for."""
        stage = _tile_bytes(self.dq_tile_n, self.padded_qk) + _tile_bytes(
            self.dq_tile_n, self.padded_v
        )
        fixed = _tile_bytes(self.dq_tile_m, self.padded_qk) + _tile_bytes(
            self.dq_tile_m, self.padded_v
        )
        return 2 if 2 * (fixed + 2 * stage + 1024) <= self.target.max_smem_bytes + 1024 else 1

    def _dq_blocks(self, atoms: int) -> int:
        """16-column blocks of a warp that has ``atoms`` blocks of queries; 0 where none fits."""
        warps_m, rest = divmod(self.tile_m, 16 * atoms)
        if rest or self.num_warps % warps_m:
            return 0
        return -(-self.padded_qk // (16 * (self.num_warps // warps_m)))

    @property
    def registers_estimate(self) -> int:
        """Accumulators of dK, dV, S and dP, and the overhead."""
        columns = sum(
            16 * -(-padded // (16 * self.head_splits)) for padded in (self.padded_qk, self.padded_v)
        )
        return 16 * self.key_atoms * (columns + 2 * self.score_m) // 32 + _OVERHEAD_REGISTERS

    def check(self) -> KernelPlan:
        """This plan, once its tiles divide among the warps."""
        if self.tile_n * self.head_splits != 16 * self.key_atoms * self.num_warps:
            raise PlanError(
                f"plan: {self.name}: expected tile_n = 16 * key_atoms * num_warps / head_splits, "
                f"got {self.tile_n}, {self.key_atoms}, {self.num_warps} and {self.head_splits}."
            )
        if self.tile_m % (16 * self.head_splits * self.score_splits):
            raise PlanError(
                f"plan: {self.name}: expected tile_m in multiples of 16 * head_splits * "
                f"score_splits, got {self.tile_m}, {self.head_splits} and {self.score_splits}."
            )
        step = 32 if self.variant.dropout else 16
        if self.dq_tile_n % step:
            raise PlanError(
                f"plan: {self.name}: expected dq_tile_n in multiples of {step}, got "
                f"{self.dq_tile_n}."
            )
        if not self.variant.deterministic and not self._dq_blocks(self.dq_atoms):
            raise PlanError(
                f"plan: {self.name}: expected tile_m = 16, 32 or 64 times a divisor of "
                f"{self.num_warps} warps, got {self.tile_m}."
            )
        return super().check()


def plan(variant: Variant, pass_name: str, target: Target, family: str, reason: str) -> Sm80Plan:
    """The shipped plan: the first legal candidate."""
    shipped = next(candidates(variant, pass_name, target, family, reason), None)
    if shipped is None:
        raise PlanError(
            f"plan: {variant.key}: no {pass_name} tile fits {target.name} "
            f"({target.max_smem_bytes} bytes of shared memory)."
        )
    return shipped


def candidates(
    variant: Variant, pass_name: str, target: Target, family: str, reason: str
) -> Iterator[Sm80Plan]:
    """Every legal plan, best first."""
    forward = pass_name == "forward"
    kind = Sm80ForwardPlan if forward else Sm80BackwardPlan
    shapes = _forward if forward else _backward
    for tiles in shapes(variant, target):
        candidate = kind(
            variant=variant,
            pass_name=pass_name,
            target=target,
            family=family,
            reason=reason,
            **tiles,
        )
        try:
            candidate.check()
        except PlanError:
            continue  # over a limit of this target
        yield candidate


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
    reads = _read_levels(program_for(variant))
    shapes = [(128, 64, 4, 1), (128, 32, 4, 1), (128, 64, 8, 1), (64, 64, 4, 1), (64, 32, 4, 1)]
    if columns > 128:
        shapes = [(64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 1)]
    elif (columns > 64 and "score" in reads) or (
        columns > 96 and ("line" in reads or (reads and target.capability >= (10, 0)))
    ):
        shapes.insert(0, shapes.pop(2))
    elif columns > 96 and variant.dropout:  # 64 keys and random bits spill
        del shapes[0]
    elif columns <= 64 and program_for(variant).score is None and not variant.dropout:
        shapes.insert(0, (128, 128, 4, 1))
    for tile_m, tile_n, num_warps, key_splits in shapes:
        yield {
            "tile_m": tile_m,
            "tile_n": tile_n,
            "num_warps": num_warps,
            "key_splits": key_splits,
        }


def _read_levels(program: Program) -> frozenset[str]:
    """How fine the program's reads of tensors are.

    "position" where any is of a row or a column, "line" where the score has such a read, "score"
    where it has one of both.
    """
    found = set()
    for root in (program.mask, program.score):
        for node in () if root is None else walk(root):
            if isinstance(node, Load):
                names = {n.id for n in walk(node) if isinstance(n, Name)} & {"q_idx", "kv_idx"}
                found |= {"position"} if names else set()
                if root is program.score and names:
                    found.add("score" if len(names) == 2 else "line")
    return frozenset(found)


def _has_wide_gradient(program: Program) -> bool:
    """Whether a gradient of three dimensions or more is added to for each pair: long addresses."""
    return any(s.level == "element" and len(s.capture.dims) > 2 for s in program.gradients)


def _backward(variant: Variant, target: Target) -> Iterator[dict[str, int]]:
    """Tiles in order of preference; above 128 columns two warps share their keys' columns."""
    columns = max(variant.head_dim, variant.head_dim_v)
    # tile_m, num_warps, key_atoms, head_splits, score_splits, num_stages, min_blocks
    program = program_for(variant)
    if columns <= 128 and program.gradients:  # their sums take registers
        shapes = [(64, 8, 1, 1, 1, 2, 1)] if columns <= 64 else []
    elif columns <= 64:
        shapes = [(64, 4, 2, 1, 2, 1, 2), (64, 8, 1, 1, 1, 2, 1)]
    elif columns <= 80:
        shapes = [(64, 8, 1, 1, 1, 2, 1)]
    elif columns <= 128:
        shapes = [(64, 8, 2, 2, 1, 2, 1), (64, 8, 2, 2, 1, 1, 1)]
    else:
        shapes = [
            (64, 8, 1, 2, 1, 2, 1),
            (64, 8, 1, 2, 1, 1, 1),
            (32, 8, 1, 2, 1, 1, 1),
            (32, 4, 1, 2, 1, 1, 1),
        ]
    if columns <= 128:
        shapes += [(32, 8, 1, 1, 1, 2, 1), (32, 4, 1, 1, 1, 2, 1), (32, 4, 1, 1, 1, 1, 1)]
    for tile_m, num_warps, key_atoms, head_splits, score_splits, num_stages, min_blocks in shapes:
        yield {
            "tile_m": tile_m,
            "tile_n": 16 * key_atoms * num_warps // head_splits,
            "num_warps": num_warps,
            "key_atoms": key_atoms,
            "head_splits": head_splits,
            "score_splits": score_splits,
            "num_stages": num_stages,
            "min_blocks": min_blocks,
        }
