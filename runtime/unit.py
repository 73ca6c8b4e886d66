"""BuildRequest -> Unit: plan, source, and the fingerprint of all that decides the binary."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import msgspec
from jinja2.bccache import Bucket

from ..generator.arch import Target
from ..generator.errors import CompileError, ToolchainError
from ..generator.plan import KernelPlan, plan
from ..generator.render import Rendered, environment, render
from ..generator.variant import Variant
from ..generator.version import VERSION
from . import manifest
from .atomic import write_atomic

BINDING_PACKAGE = "apache-tvm-ffi"
BINDING_MODULE = "tvm_ffi"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One binary that is wanted.

    Attributes:
        variant: the function.
        pass_name: "forward" or "backward".
        target: what it runs on.
        family: whose template; None for the one that serves the target best.
        pins: (field, value) of the spec's ``tuning:`` block.
        strict: lost speed (spills, ptxas's C7508 and C7510 to C7515) fails the build.
    """

    variant: Variant
    pass_name: str
    target: Target
    family: str | None = None
    pins: tuple[tuple[str, object], ...] = ()
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.variant.key} {self.pass_name} {self.target.name}"

    def plan(self) -> KernelPlan:
        """The plan for it, its pins applied.

        Raises:
            PlanError: when no plan fits.
        """
        return plan(
            self.variant, self.pass_name, self.target, family=self.family, pins=dict(self.pins)
        )


class Place(msgspec.Struct, frozen=True):
    """Where the cache looks a binary up: by what it is, and what it was made from."""

    target: str
    family: str
    pass_name: str
    key: str
    source_fingerprint: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A translation unit: what a request comes to, ready to look up or to compile."""

    request: BuildRequest
    plan: KernelPlan
    rendered: Rendered
    source_fingerprint: str

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's flags, all but paths."""
        return build_flags(self.plan)

    @property
    def place(self) -> Place:
        """Where its binary is looked up."""
        chosen = self.plan
        where = (chosen.target.name, chosen.family, chosen.pass_name, chosen.variant.key)
        return Place(*where, self.source_fingerprint)

    @property
    def library_name(self) -> str:
        """Name of the shared object."""
        return f"{self.plan.name}.so"


def prepare(request: BuildRequest, template_cache: Path | None = None) -> Unit:
    """The unit of ``request``; a pure function of it but for the templates' compiled form.

    Args:
        request: what is wanted.
        template_cache: directory that keeps Jinja's compiled templates: they take longer to
            compile than all else that a warm load does.

    Raises:
        PlanError: when no plan fits.
        CompileError: when a template is wrong; names the template and the line.
    """
    _keep_compiled_templates(template_cache)
    chosen = request.plan()
    try:
        rendered = render(chosen)
    except jinja2.TemplateError as error:
        raise CompileError(
            f"render: {request}: {_template_place(error, chosen.template)}: "
            f"{error.message or type(error).__name__}. Mend the template."
        ) from error
    return Unit(request, chosen, rendered, source_fingerprint(chosen, rendered))


def build_flags(chosen: KernelPlan) -> tuple[str, ...]:
    """The plan's compile flags, and those that make a shared object of any source."""
    host = ("-fPIC",) if chosen.target.is_cpu else ("-Xcompiler", "-fPIC")
    return tuple(dict.fromkeys((*chosen.compile_flags, "-shared", *host)))


def source_fingerprint(chosen: KernelPlan, rendered: Rendered) -> str:
    """sha256 over all that decides a binary except the compilers; file times are no part of it."""
    facts = {
        "layout": manifest.LAYOUT,
        "flashgen": VERSION,
        "binding": binding_abi(),
        "isa": _isa(chosen.compile_flags),
        "flags": build_flags(chosen),
        "plan": chosen.describe(),
        "name": rendered.name,
        "source": rendered.text,
        "headers": rendered.headers,
    }
    return manifest.sha256(msgspec.json.encode(facts, order="sorted"))


def compiler_fingerprint(identity: str) -> str:
    """sha256 of a toolchain's identity."""
    return manifest.sha256(identity.encode())


@cache
def binding_abi() -> str:
    """The binding and the versions of it that a binary works with: major and minor."""
    try:
        version = importlib.metadata.version(BINDING_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(
            f"toolchain: expected the package {BINDING_PACKAGE}, found none. "
            f"Install it with: pip install {BINDING_PACKAGE}"
        ) from None
    return f"tvm-ffi {'.'.join(version.split('.')[:2])}"


@cache
def binding_root() -> Path:
    """Directory of the binding's package, which holds include/ and lib/; not imported for it."""
    spec = importlib.util.find_spec(BINDING_MODULE)
    if spec is None or spec.origin is None:
        raise ToolchainError(
            f"toolchain: expected the package {BINDING_PACKAGE}, found none. "
            f"Install it with: pip install {BINDING_PACKAGE}"
        )
    return Path(spec.origin).parent


@cache
def cpu_features() -> frozenset[str]:
    """The instruction-set flags of this machine's first processor."""
    # the kernel makes this file line by line: the rest of it, one block a core, is not read
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def _isa(flags: tuple[str, ...]) -> str:
    machine = os.uname().machine
    if any(flag.endswith("=native") for flag in flags):
        features = " ".join(sorted(cpu_features()))
        return f"{machine} {hashlib.sha256(features.encode()).hexdigest()}"
    return machine


def _template_place(error: jinja2.TemplateError, fallback: str) -> str:
    """``template:line`` of the innermost template that ``error`` came through."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.name or fallback}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    inner = next((f for f in reversed(frames) if f.filename.endswith(".j2")), None)
    return f"{inner.filename}:{inner.lineno}" if inner else fallback


class _TemplateCache(jinja2.BytecodeCache):
    """Compiled templates on disk; Jinja checks the source's checksum, so a stale one is a miss."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError), (self.directory / bucket.key).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):  # a cache that can't be written costs time, no more
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(self.directory / bucket.key, bucket.bytecode_to_string(), durable=False)


def _keep_compiled_templates(directory: Path | None) -> None:
    env = environment()
    known = env.bytecode_cache
    if directory is None:
        env.bytecode_cache = None
    elif not isinstance(known, _TemplateCache) or known.directory != directory:
        env.bytecode_cache = _TemplateCache(directory)
