"""Targets and their hardware limits: the one table, with its sources."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from .errors import TargetError

MAX_SMEM_SM75 = 65_536  # bytes, 64 KiB; CUDA C++ Programming Guide, compute capabilities, 7.5
MAX_SMEM_SM80 = 166_912  # bytes, 163 KiB; same table, 8.0 and 8.7
MAX_SMEM_SM86 = 101_376  # bytes, 99 KiB; same table, 8.6, 8.9 and 12.x
MAX_SMEM_SM90 = 232_448  # bytes, 227 KiB; same table, 9.0 and 10.x


@dataclass(frozen=True, slots=True)
class Target:
    """What a binary runs on.

    Limits are those of the CUDA C++ Programming Guide, table "Technical Specifications per
    Compute Capability"; ``nvcc_arch`` is the spelling that nvcc alone hears.
    """

    name: str
    capability: tuple[int, int]  # (0, 0) for the CPU
    nvcc_arch: str  # "" for the CPU
    family: str  # the template family that serves it best
    max_smem_bytes: int  # per thread block, opt-in
    smem_per_sm_bytes: int
    max_registers: int = 255  # per thread
    registers_per_sm: int = 65_536
    max_threads_per_sm: int = 2048
    warp_size: int = 32
    dtypes: tuple[str, ...] = ("fp16", "bf16")  # what its kernels multiply

    @property
    def is_cpu(self) -> bool:
        """Whether this target is the host processor."""
        return self.name == "cpu"


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("cpu", (0, 0), "", "cpu", 0, 0, dtypes=("fp16", "bf16", "fp32", "fp64")),
        Target(
            *("sm75", (7, 5), "75", "sm75", MAX_SMEM_SM75, 65_536),
            max_threads_per_sm=1024,
            dtypes=("fp16",),  # its tensor cores know no bf16
        ),
        Target("sm80", (8, 0), "80", "sm80", MAX_SMEM_SM80, 167_936),
        Target("sm86", (8, 6), "86", "sm80", MAX_SMEM_SM86, 102_400, max_threads_per_sm=1536),
        Target("sm87", (8, 7), "87", "sm80", MAX_SMEM_SM80, 167_936, max_threads_per_sm=1536),
        Target("sm89", (8, 9), "89", "sm80", MAX_SMEM_SM86, 102_400, max_threads_per_sm=1536),
        Target("sm90", (9, 0), "90a", "sm90", MAX_SMEM_SM90, 233_472),
        Target("sm100", (10, 0), "100", "sm80", MAX_SMEM_SM90, 233_472),
        Target("sm120", (12, 0), "120", "sm80", MAX_SMEM_SM86, 102_400, max_threads_per_sm=1536),
    )
}
NATIVE = "native"
"""The spelling of "this machine's device", which only the runtime can resolve."""
FAMILIES = ("cpu", "sm75", "sm80", "sm90")
"""Families with templates; a target whose own family isn't here falls back to sm80."""

_SPELLING = re.compile(r"(?:sm|compute)?_?([0-9]+)(?:\.([0-9]))?([af])?")
_ACCELERATED = {"a": (9, 0), "f": (10, 0)}  # the first capability with nvcc's sm_NNa, sm_NNf


def parse_target(text: str, native: Target | None = None) -> Target:
    """The target that ``text`` spells: ``sm90``, ``sm_90``, ``90``, ``9.0``, ``sm90a``, ``cpu``.

    Args:
        text: the spelling.
        native: what the word ``native`` stands for; the caller knows this machine's device.

    Raises:
        TargetError: with the list of valid targets, and the reason for Volta and older.
    """
    name = text.strip().lower()
    if name == NATIVE and native is not None:
        return native
    match = _SPELLING.fullmatch(name)
    suffix = ""
    if match:
        digits, minor, suffix = match[1], match[2] or "", match[3] or ""
        name = f"sm{digits}{minor}"
    target = TARGETS.get(name)
    if target is not None and (not suffix or target.capability >= _ACCELERATED[suffix]):
        return target
    expected = f"target: expected one of {', '.join(TARGETS)}, got {text!r}."
    if name == NATIVE:
        raise TargetError(f"{expected} {NATIVE} (this machine's device) goes with --arch alone.")
    if match and len(match[1]) < 4 and int(name[2:]) < 75:
        raise TargetError(
            f"{expected} CUDA 13 starts at sm75 (Turing), so older GPUs can't be built for."
        )
    near = _lower_targets(name) or difflib.get_close_matches(name, [*TARGETS, NATIVE], n=1)
    raise TargetError(f"{expected} Did you mean {near[0]!r}?" if near else expected)


def _lower_targets(name: str) -> list[str]:
    """Targets of ``name``'s major version, the highest first: sm81 gives sm80."""
    major = f"sm{name[2:-1]}" if name[2:].isdecimal() else "none"
    return [t.name for t in reversed(TARGETS.values()) if t.name[:-1] == major and t.name < name]


def parse_targets(text: str, native: Target | None = None) -> tuple[Target, ...]:
    """The targets of a list such as ``"8.0;9.0a"`` or ``"sm80,native"``, without repeats.

    Raises:
        TargetError: as `parse_target`, or for an empty list.
    """
    parts = [part for part in re.split(r"[;,\s]+", text) if part]
    if not parts:
        raise TargetError(f"target: expected one of {', '.join(TARGETS)}, got {text!r}.")
    return tuple(dict.fromkeys(parse_target(part, native) for part in parts))


def target_for_capability(major: int, minor: int) -> Target:
    """The highest target of the device's own major version that is not above it.

    10.3 gives sm100, 12.1 gives sm120, 8.8 gives sm87.

    Raises:
        TargetError: when no target of that major version exists.
    """
    fitting = [
        t for t in TARGETS.values() if t.capability[0] == major and t.capability <= (major, minor)
    ]
    if not fitting or major == 0:
        raise TargetError(
            f"target: no target for compute capability {major}.{minor}; "
            f"valid targets are {', '.join(TARGETS)}."
        )
    return max(fitting, key=lambda t: t.capability)


def family_for(target: Target, family: str | None = None) -> tuple[str, str]:
    """The (family, reason) whose templates serve ``target``.

    ``reason`` is a sentence for `flashgen show`: a fallback is never silent.

    Raises:
        TargetError: when an explicit ``family`` can't run on ``target``.
    """
    if family is None:
        if target.family in FAMILIES:
            return target.family, f"{target.family} is the family made for {target.name}"
        if target.capability >= (8, 0):
            return "sm80", (
                f"fallback: family {target.family} has no templates yet, "
                f"and sm80 code runs on every target from sm80 up"
            )
        raise TargetError(
            f"target: {target.name} needs family {target.family}, which has no templates yet. "
            f"Valid targets now: {', '.join(buildable_targets())}."
        )
    if family not in FAMILIES:
        raise TargetError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}.")
    if family == "sm75" and target.capability > (7, 5):
        raise TargetError(
            f"family: {family} is built for target {family} alone, whose PTX runs on "
            f"{target.name} too, got target {target.name}. Build for {family}."
        )
    serves = target.family == family or (family == "sm80" and target.capability >= (8, 0))
    if not serves:
        raise TargetError(f"family: {family} code can't run on target {target.name}.")
    return family, "asked for"


def target_for_family(target: Target, family: str | None) -> Target:
    """What to build for when a device of ``target`` shall run the code of ``family``.

    That is ``target``; for family sm75 on a newer GPU it is sm75, whose PTX the driver compiles.
    """
    if family == "sm75" and target.capability > (7, 5):
        return TARGETS[family]
    return target


def buildable_targets() -> tuple[str, ...]:
    """Names of the targets that some family with templates serves."""
    return tuple(
        t.name
        for t in TARGETS.values()
        if t.family in FAMILIES or (not t.is_cpu and t.capability >= (8, 0))
    )
