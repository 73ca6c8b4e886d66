"""KernelPlans of one variant -> one source file and a C header, for callers without Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .body import CaptureDtype
from .errors import PlanError
from .ir.ranges import MAX_PARAM
from .plan import KernelPlan
from .program import ProgramCapture
from .program.data import UNBOUNDED
from .program.presets import WINDOW_SIDES
from .render import environment, header_text, render_with
from .variant import PASSES
from .version import VERSION

BINDING = "bindings/c"
_STAND_INS = {
    "host/abi.h": f"{BINDING}/abi.h",
    "host/attention_args.h": "host/attention.h",
}
"""Headers of the tvm-ffi binding -> what an exported file has in their place."""

_QUOTED = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)
_SYSTEM = re.compile(r"^#include <([^>]+)>\n", re.MULTILINE)
_C_TYPES: dict[CaptureDtype, str] = {
    "bool": "bool",
    "int32": "int32_t",
    "int64": "int64_t",
    "fp16": "uint16_t",
    "bf16": "uint16_t",
    "fp32": "float",
    "fp64": "double",
}
_NOT_FOR_AN_OBJECT = ("-shared", "-fPIC", "-fvisibility=hidden", "--ptxas-options=-v", "-lineinfo")


@dataclass(frozen=True, slots=True)
class Exported:
    """A kernel for C: the names and texts of its two files."""

    source_name: str
    source: str
    header_name: str
    header: str


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of the source: a header by its path, or a pass by its name."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class _ExportParam:
    """A run-time param as the C header and its checks have it."""

    name: str
    cpp_name: str
    is_int: bool
    positive: bool
    least: str
    most: str
    note: str


@dataclass(frozen=True, slots=True)
class _Export:
    """What the templates of ``bindings/c`` are given as ``export``."""

    name: str
    plans: tuple[KernelPlan, ...]
    parts: tuple[_Part, ...] = ()
    headers: tuple[_Part, ...] = ()
    system_headers: tuple[str, ...] = ()

    @property
    def passes(self) -> tuple[str, ...]:
        return tuple(plan.pass_name for plan in self.plans)

    @property
    def on_gpu(self) -> bool:
        return not self.plans[0].target.is_cpu

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes of a call, as fields and arguments, in the order of WorkspaceSizes."""
        if self.plans[0].variant.layout == "varlen":
            return ("num_sequences", "num_heads", "num_heads_kv", "total_q", "total_k")
        return ("batch", "num_heads", "num_heads_kv", "seqlen_q", "seqlen_k")

    @property
    def size_arguments(self) -> str:
        return ", ".join(f"int64_t {size}" for size in self.sizes)

    @property
    def sizes_in_order(self) -> str:
        return ", ".join(self.sizes)

    @property
    def params(self) -> tuple[_ExportParam, ...]:
        found = []
        for param in self.plans[0].program.params:
            is_int, is_window = param.type == "int", param.name in WINDOW_SIDES
            least, most = (0, UNBOUNDED) if is_window else (-MAX_PARAM, MAX_PARAM)
            note = f"keys beside the diagonal, at least 0; {UNBOUNDED} for no bound"
            found.append(
                _ExportParam(
                    param.name,
                    param.cpp_name,
                    is_int,
                    param.name == "softcap",
                    f"INT64_C({least})",
                    f"INT64_C({most})",
                    note if is_window else "> 0" if param.name == "softcap" else "",
                )
            )
        return tuple(found)

    @property
    def command(self) -> str:
        """How to compile the file."""
        plan = self.plans[0]
        compiler = "g++" if plan.target.is_cpu else "nvcc"
        flags = [flag for flag in plan.compile_flags if flag not in _NOT_FOR_AN_OBJECT]
        return " ".join((compiler, "-c", *flags, _source_name(self.name, plan)))

    def sizes_of(self, capture: ProgramCapture) -> str:
        """The sizes that a capture must have, in C++; -1 where any will do."""
        spelled = {"total_q": "a.seqlen_q", "total_k": "a.seqlen_k"}
        free = ("blocks_q", "blocks_k")  # of the longest sequence, or of any length
        return ", ".join(
            "-1"
            if dim in free
            else spelled.get(dim, f"a.{dim}")
            if isinstance(dim, str)
            else f"{dim}"
            for dim in capture.dims
        )

    def c_type(self, capture: ProgramCapture) -> str:
        """The C type of a capture's elements; 16-bit floats are their bits."""
        return _C_TYPES[capture.dtype]


def export(plans: Sequence[KernelPlan], name: str = "") -> Exported:
    """One source file with ``plans`` of one variant and target, and a C header.

    The source holds every header that it needs in the order of need, and includes nothing but the
    C header and those of the compiler. The same plans give the same bytes.

    Args:
        plans: one for each pass that is wanted.
        name: what the functions' names begin with; default, from key and target.

    Raises:
        PlanError: when ``name`` is none in C, or the plans' family has no C entry points.
    """
    plans = tuple(sorted(plans, key=lambda plan: PASSES.index(plan.pass_name)))
    first = plans[0]
    name = name or first.name.partition("_")[2]
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise PlanError(
            f"export: name: expected a name of C, got {name!r}. Use letters, digits and _."
        )
    described = _Export(name, plans)
    texts = [render_with(plan, f"{BINDING}/{plan.pass_name}.h.j2", described) for plan in plans]
    if any("__tvm_ffi" in text for text in texts):
        raise PlanError(
            f"export: {first.variant.key} {first.target.name}: expected a family whose templates "
            f"end in `include entry`, got {first.family}. Choose another by --family."
        )
    headers = _inlined(texts)
    system = sorted(
        {found for text in (*texts, *headers.values()) for found in _SYSTEM.findall(text)}
    )
    complete = _Export(
        name,
        plans,
        tuple(_Part(plan.pass_name, _bare(text)) for plan, text in zip(plans, texts, strict=True)),
        tuple(_Part(path, _bare(text)) for path, text in headers.items()),
        tuple(system),
    )
    return Exported(
        _source_name(name, first),
        _render("source.j2", first, complete),
        f"{name}.h",
        _render("header.h.j2", first, complete),
    )


def _source_name(name: str, plan: KernelPlan) -> str:
    return f"{name}{'.cpp' if plan.target.is_cpu else '.cu'}"


def _render(template: str, plan: KernelPlan, described: _Export) -> str:
    return (
        environment()
        .get_template(f"{BINDING}/{template}")
        .render(
            plan=plan,
            variant=plan.variant,
            program=plan.program,
            version=VERSION,
            export=described,
        )
    )


def _inlined(texts: Sequence[str]) -> dict[str, str]:
    """Every header of ``texts`` by path, each after those that it needs."""
    found: dict[str, str] = {}

    def add(path: str) -> None:
        path = _STAND_INS.get(path, path)
        if path in found:
            return
        text = header_text(path)
        for needed in _QUOTED.findall(text):
            add(needed)
        found[path] = text

    for text in texts:
        for path in _QUOTED.findall(text):
            add(path)
    return found


def _bare(text: str) -> str:
    """``text`` without its includes, which come first in the file."""
    text = _SYSTEM.sub("", _QUOTED.sub("", text)).replace("#pragma once\n", "")
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
