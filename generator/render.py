"""KernelPlan -> source text, through the Jinja templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

import jinja2

from .plan import KernelPlan
from .program import program_for
from .variant import Variant
from .version import VERSION

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_CROWDED = re.compile(r"^(\};?)\n(?=[^\s}#])(?!static_assert)", re.MULTILINE)
_GAP = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A translation unit: its text and the plain headers that it includes.

    Attributes:
        name: file name, such as ``fwd_d128_bf16_causal_sm80.cu``.
        text: the rendered source.
        headers: (path below ``templates/``, text) of each header it needs, transitively, sorted.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]


def render(plan: KernelPlan) -> Rendered:
    """The source of ``plan``; the same plan gives the same bytes."""
    text = render_with(plan, f"bindings/tvm_ffi/{plan.pass_name}.h.j2")
    return Rendered(plan.source_name, text, headers_of(text))


def render_with(plan: KernelPlan, entry: str, export: object = None) -> str:
    """The text of ``plan``'s file whose entry points are the template ``entry``.

    Args:
        plan: what to render.
        entry: path of a binding's template below ``templates/``.
        export: what that template is given by this name, if anything.
    """
    template = environment().get_template(plan.template)
    return spaced(
        template.render(
            plan=plan,
            variant=plan.variant,
            program=plan.program,
            hooks=plan.program.hooks,
            version=VERSION,
            entry=entry,
            export=export,
        )
    )


def spaced(text: str) -> str:
    """``text`` with one blank line between definitions, whichever parts a variant leaves out.

    A template can't: Jinja takes the blank lines behind a line statement with it.
    """
    return _GAP.sub("\n\n", _CROWDED.sub(r"\1\n\n", text))


def render_probe(variant: Variant) -> str:
    """The source of a function that classifies tiles as ``variant``'s kernels do.

    For `flashgen explain`; the variant's program must have a tile test.
    """
    program = program_for(variant)
    template = environment().get_template("explain/tiles.cpp.j2")
    return spaced(
        template.render(variant=variant, program=program, hooks=program.hooks, version=VERSION)
    )


@cache
def environment() -> jinja2.Environment:
    """The template environment: delimiters that are comments in C++, nothing undefined."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("flashgen", "templates"),
        undefined=jinja2.StrictUndefined,
        finalize=_cpp_literal,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        line_statement_prefix="//%",
        variable_start_string="@{",
        variable_end_string="}",
        block_start_string="/*%",
        block_end_string="%*/",
        comment_start_string="/*#",
        comment_end_string="#*/",
    )


def _cpp_literal(value: object) -> object:
    """C++ spells True as true; None in a template is a mistake."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        raise jinja2.UndefinedError("a template printed None")
    return value


def headers_of(text: str) -> tuple[tuple[str, str], ...]:
    """Every plain header that ``text`` includes with quotes, transitively, by path."""
    found: dict[str, str] = {}
    pending = _INCLUDE.findall(text)
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found[path] = header_text(path)
        pending += _INCLUDE.findall(found[path])
    return tuple(sorted(found.items()))


@cache
def header_text(path: str) -> str:
    """The text of the plain header at ``path`` below ``templates/``."""
    loader = environment().loader
    assert loader is not None
    if ".." in PurePosixPath(path).parts:
        raise ValueError(f"a header outside templates/: {path}")
    return loader.get_source(environment(), path)[0]
