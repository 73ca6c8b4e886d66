"""``ptxas -v`` output -> each kernel's registers, spills and memory, and what costs speed."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


class KernelResources(msgspec.Struct, frozen=True):
    """What ptxas says of one kernel, per thread but for shared memory.

    Attributes:
        kernel: its name, without parameters and template arguments.
        arch: what it was compiled for, such as ``sm_80``.
        registers: registers of a thread.
        spill_store_bytes: bytes stored to local memory for want of registers.
        spill_load_bytes: bytes loaded back.
        stack_bytes: bytes of the stack frame.
        smem_bytes: static shared memory of a block; the dynamic part is in the plan.
    """

    kernel: str
    arch: str
    registers: int
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    smem_bytes: int = 0


_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_WARNING = re.compile(r"\bwarning\b|\(C75(?:08|1[0-5])\)", re.IGNORECASE)
_LOST_SPEED = re.compile(r"\(C75(?:08|1[0-5])\)")
_MANGLED_PART = re.compile(r"(\d+)")


def parse_resources(log: str) -> tuple[KernelResources, ...]:
    """The kernels that ``log``, a compiler's output with ``ptxas -v``, tells of, in its order."""
    found: list[KernelResources] = []
    entry: tuple[str, str] | None = None
    in_entry = False
    frame = (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, frame = (match[1], match[2]), (0, 0, 0)
        elif match := _FUNCTION.search(line):
            # properties of a function that was not inlined follow in the same form: not ours
            in_entry = entry is not None and match[1] == entry[0]
        elif (match := _FRAME.search(line)) and entry is not None and in_entry:
            frame = (int(match[1]), int(match[2]), int(match[3]))
        elif (match := _USED.search(line)) and entry is not None:
            smem = _SMEM.search(line)
            stack, stores, loads = frame
            found.append(
                KernelResources(
                    kernel=kernel_name(entry[0]),
                    arch=entry[1],
                    registers=int(match[1]),
                    spill_store_bytes=stores,
                    spill_load_bytes=loads,
                    stack_bytes=stack,
                    smem_bytes=int(smem[1]) if smem else 0,
                )
            )
            entry = None
    return tuple(found)


def parse_warnings(log: str) -> tuple[str, ...]:
    """The warnings of ``log``, without repeats."""
    lines = (line.strip() for line in log.splitlines() if _WARNING.search(line))
    return tuple(dict.fromkeys(lines))


def lost_speed_warnings(
    resources: Iterable[KernelResources], warnings: Iterable[str] = ()
) -> tuple[str, ...]:
    """What in a build means lost speed: spills, and ptxas's C7508 and C7510 to C7515.

    C7508 says that setmaxnreg was ignored, C7510 to C7515 that wgmma was serialised.
    """
    spills = tuple(
        f"{r.kernel} for {r.arch}: {r.spill_store_bytes} bytes spill stores, "
        f"{r.spill_load_bytes} bytes spill loads"
        for r in resources
        if r.spill_store_bytes or r.spill_load_bytes
    )
    return spills + tuple(w for w in warnings if _LOST_SPEED.search(w))


def kernel_name(symbol: str) -> str:
    """The source name of a mangled ``symbol``, namespaces kept, parameters dropped."""
    if not symbol.startswith("_Z"):
        return symbol
    rest = symbol[2:].removeprefix("N").removeprefix("L")
    parts: list[str] = []
    while match := _MANGLED_PART.match(rest):
        length = int(match[1])
        part = rest[match.end() : match.end() + length]
        if not part.startswith("_GLOBAL__N_"):  # an anonymous namespace tells a reader nothing
            parts.append(part)
        rest = rest[match.end() + length :].removeprefix("L")
        if symbol[2] != "N":
            break
    return "::".join(parts) if parts and all(parts) else symbol
