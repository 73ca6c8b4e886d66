"""KernelPlan: everything that a template needs, decided in Python and printable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from ..arch import Target
from ..errors import PlanError
from ..program import Program, program_for
from ..variant import PASS_PREFIX, Variant

ELEMENTS = {"fp16": "Fp16", "bf16": "Bf16"}
"""The element types in templates/device/element.cuh, by dtype."""


def round_up(value: int, step: int) -> int:
    """``value``, or the next multiple of ``step``."""
    return -(-value // step) * step


def nvcc_flags(gencode: str) -> tuple[str, ...]:
    """Nvcc's flags for code of ``gencode``."""
    return ("-std=c++17", "-O3", "-lineinfo", "--ptxas-options=-v", f"-gencode={gencode}")


def native_flags(target: Target) -> tuple[str, ...]:
    """Nvcc's flags for ``target`` alone: no PTX for what comes after it."""
    return nvcc_flags(f"arch=compute_{target.nvcc_arch},code=sm_{target.nvcc_arch}")


def hides_keys(program: Program) -> bool:
    """Whether a key may be hidden from every query: not with bottom-right causal alone."""
    causal = program_for(Variant(8, 8, "fp16", causal=True)).mask
    return program.mask is not None and program.mask != causal


def is_ragged(variant: Variant) -> bool:
    """Whether some thread blocks of a head have more work than others, as with causal alone."""
    program = program_for(variant)
    uneven = variant.causal and program.tile_test is None and program.band.lower is None
    return bool(uneven) and variant.layout != "varlen"


def has_wide_gradient(program: Program) -> bool:
    """Whether a gradient of three dimensions or more is added to for each pair: long addresses."""
    return any(s.level == "element" and len(s.capture.dims) > 2 for s in program.gradients)


@dataclass(frozen=True, slots=True)
class SmemBuffer:
    """One buffer of the shared-memory map; buffers may overlap where their lives don't."""

    name: str
    offset_bytes: int
    size_bytes: int
    purpose: str

    @property
    def constant(self) -> str:
        """The name of its offset in the kernel: ``kQOffset``."""
        return f"k{self.name.title()}Offset"


def stack(buffers: list[tuple[str, int, str]], alignment: int) -> tuple[SmemBuffer, ...]:
    """(name, bytes, purpose) of buffers, one after another, each aligned to so many bytes."""
    placed, offset = [], 0
    for name, size, purpose in buffers:
        placed.append(SmemBuffer(name, offset, size, purpose))
        offset = round_up(offset + size, alignment)
    return tuple(placed)


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """The decisions common to all families; each family's planner subclasses it.

    Attributes:
        variant: the function to compute.
        pass_name: "forward" or "backward".
        target: what the binary runs on.
        family: whose template renders it.
        reason: why this family, one sentence.
        tile_m: query rows of a tile.
        tile_n: key rows of a tile.
    """

    pins: ClassVar[tuple[str, ...]] = ("tile_m", "tile_n")  # fields that `tuning:` may set
    templates: ClassVar[str] = ""  # the family whose templates this one shares

    variant: Variant
    pass_name: str
    target: Target
    family: str
    reason: str = field(default="", compare=False)
    tile_m: int
    tile_n: int

    @property
    def name(self) -> str:
        """File stem and kernel name: ``fwd_d128_bf16_causal_sm80``."""
        key = self.variant.key.replace("-", "_").replace(".", "p")
        return f"{PASS_PREFIX[self.pass_name]}_{key}_{self.target.name}"

    @property
    def template(self) -> str:
        """Path of the template below ``templates/``."""
        suffix = "cpp" if self.family == "cpu" else "cu"
        return f"{self.templates or self.family}/{self.pass_name}.{suffix}.j2"

    @property
    def source_name(self) -> str:
        """Name of the rendered file."""
        return f"{self.name}.{'cpp' if self.family == 'cpu' else 'cu'}"

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Every flag of the compiler but its paths; part of the fingerprint."""
        raise NotImplementedError(f"{type(self).__name__} names no compile flags")

    @property
    def program(self) -> Program:
        """The score and mask program that fills the template's hooks."""
        return program_for(self.variant)

    @property
    def hides_keys(self) -> bool:
        """Whether a key may be hidden from every query."""
        return hides_keys(self.program)

    @property
    def smem(self) -> tuple[SmemBuffer, ...]:
        """The shared-memory map; empty for the CPU."""
        return ()

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a thread block, in bytes."""
        return max((b.offset_bytes + b.size_bytes for b in self.smem), default=0)

    @property
    def registers_estimate(self) -> int:
        """Estimated registers of a thread; 0 for the CPU."""
        return 0

    @property
    def segments(self) -> tuple[str, ...]:
        """How the tiles of a row are walked, in words for `flashgen show`."""
        if self.program.mask is None:
            return ("all tiles full; the last one checks seqlen_k",)
        return (
            "tiles outside the band: never visited",
            "tiles on the band's edge: element mask",
            "tiles inside the band: no mask",
        )

    def describe(self) -> dict[str, Any]:
        """The plan as plain data, for the manifest, the fingerprint and `flashgen show`."""
        own = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("variant", "target", "reason")
        }
        return own | {
            "key": self.variant.key,
            "target": self.target.name,
            "smem_bytes": self.smem_bytes,
            "smem": [
                {"name": b.name, "offset": b.offset_bytes, "bytes": b.size_bytes, "for": b.purpose}
                for b in self.smem
            ],
            "registers_estimate": self.registers_estimate,
            "segments": list(self.segments),
        }

    def pinned(self, pins: Mapping[str, Any]) -> KernelPlan:
        """This plan with the fields of a spec's ``tuning:`` block in place of its own.

        Raises:
            PlanError: when a pin is not a field that can be pinned, or not of its type.
        """
        for name in pins:
            if name not in self.pins:
                raise PlanError(
                    f"tuning: {self.pass_name} on {self.target.name}: expected one of "
                    f"{', '.join(self.pins)}, got {name!r}."
                )
            self._check_pin_type(name, pins[name])
        return replace(self, **pins)

    def _check_pin_type(self, name: str, value: object) -> None:
        """A pin replaces a value by one of its kind; numbers of a plan all count something.

        Something that a plan may do without has the default 0.
        """
        kind = type(getattr(self, name))
        least = 0 if any(f.name == name and f.default == 0 for f in fields(self)) else 1
        if type(value) is kind and not (kind is int and value < least):  # type: ignore[operator]
            return
        integer = "a positive integer" if least else "an integer, 0 or more"
        words = {bool: "true or false", int: integer, str: "a word"}
        raise PlanError(
            f"tuning: {self.pass_name} on {self.target.name}: {name}: "
            f"expected {words.get(kind, kind.__name__)}, got {value!r}."
        )

    def check(self) -> KernelPlan:
        """This plan, once it is known to be legal.

        Raises:
            PlanError: names the limit that does not hold and what to lower.
        """
        if self.smem_bytes > self.target.max_smem_bytes:
            raise PlanError(
                f"plan: {self.name}: tile {self.tile_m}x{self.tile_n} needs {self.smem_bytes} "
                f"bytes of shared memory, {self.target.name} allows "
                f"{self.target.max_smem_bytes}. Lower tile_n or num_stages."
            )
        return self


Plan = TypeVar("Plan", bound=KernelPlan)


def legal(plans: Iterable[Plan]) -> Iterator[Plan]:
    """Those of ``plans`` that are over no limit of their target, in their order."""
    for one in plans:
        try:
            one.check()
        except PlanError:
            continue
        yield one


def first_legal(plans: Iterator[Plan], variant: Variant, pass_name: str, target: Target) -> Plan:
    """The plan that ships.

    Raises:
        PlanError: when there is none.
    """
    shipped = next(plans, None)
    if shipped is None:
        raise PlanError(
            f"plan: {variant.key}: no {pass_name} tile fits {target.name} "
            f"({target.max_smem_bytes} bytes of shared memory)."
        )
    return shipped
