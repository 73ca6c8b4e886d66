"""Documents -> Specs: validated, canonical, expanded to variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from .arch import parse_target
from .convert import convert
from .errors import SpecError, TargetError
from .expand import MAX_VARIANTS, Axes, expand
from .pins import Pin, read_pins
from .spec_fields import (
    Dropout,
    DropoutBits,
    Dtype,
    HeadDim,
    HeadDims,
    PassName,
    SpecFields,
)
from .variant import GPU_DTYPES, PASSES, Variant, parse_key
from .yaml_source import Document, read_documents

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec:
    """One spec, expanded.

    Attributes:
        name: the label to load by; the file's name without one.
        path: the file it was read from.
        line: where it starts there, from 1.
        variants: the points of its matrix, no two alike.
        arch: canonical names of the targets to build for by default; () says nothing.
        passes: the passes to build by default, forward first.
        tuning: the pins, sorted by target, pass and field.
    """

    name: str
    path: str
    line: int
    variants: tuple[Variant, ...]
    arch: tuple[str, ...] = ()
    passes: tuple[str, ...] = PASSES
    tuning: tuple[Pin, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the variants."""
        return tuple(v.key for v in self.variants)

    @property
    def where(self) -> str:
        """``path:line``, for messages and tables."""
        return f"{self.path}:{self.line}"

    def pins_for(self, target_name: str, pass_name: str) -> tuple[tuple[str, Any], ...]:
        """(field, value) of each pin over the plan of ``pass_name`` on ``target_name``."""
        return tuple(
            (pin.field, pin.value)
            for pin in self.tuning
            if (pin.target, pin.pass_name) == (target_name, pass_name)
        )


def load_specs(text: str, path: str) -> tuple[Spec, ...]:
    """The specs of a file: one for each document, or for each element of a top-level list.

    Args:
        text: the file's text.
        path: its name, for messages and for the default ``name``.

    Raises:
        SpecError: on anything wrong; its message starts with ``path:line:column``.
    """
    documents: list[Document] = []
    for document in read_documents(text, path):
        documents.extend(document.items() or (document,))
    if not documents:
        raise SpecError(
            f"{path}:1:1: expected a spec, got an empty file. "
            "Write at least 'head_dim: 64' and 'dtype: bf16'."
        )
    default_name = PurePath(path).stem if len(documents) == 1 else ""
    specs = tuple(_spec(document, default_name) for document in documents)
    _check_names(documents, specs)
    return specs


def _spec(document: Document, default_name: str) -> Spec:
    fields = convert(document)
    variants = _variants(document, fields)
    arch = _arch(document, fields)
    _check_dtypes(document, fields, arch)
    passes: tuple[PassName, ...] = _listed(fields.passes)
    return Spec(
        name=_name(document, fields.name or default_name, variants),
        path=document.file,
        line=document.mark.line,
        variants=variants,
        arch=arch,
        passes=tuple(name for name in PASSES if name in passes),
        tuning=read_pins(document, fields.tuning, variants),
    )


def _variants(document: Document, fields: SpecFields) -> tuple[Variant, ...]:
    head_dims: tuple[HeadDim, ...] = _listed(fields.head_dim)
    dtypes: tuple[Dtype, ...] = _listed(fields.dtype)
    dropout: tuple[Dropout, ...] = _listed(fields.dropout)
    axes = Axes(
        head_dims=tuple((d.qk, d.v) if isinstance(d, HeadDims) else (d, d) for d in head_dims),
        dtypes=dtypes,
        causal=_listed(fields.causal),
        dropout_bits=tuple(d.bits if isinstance(d, DropoutBits) else 8 * d for d in dropout),
        deterministic=_listed(fields.deterministic),
    )
    if axes.size > MAX_VARIANTS:
        raise document.error(
            document.mark,
            f"expected a matrix of at most {MAX_VARIANTS} variants, got {axes.size}. Shorten its "
            "lists: a key that no spec lists, such as d80-bf16-causal, loads all the same.",
        )
    for field, values in (
        ("head_dim", axes.head_dims),
        ("dtype", axes.dtypes),
        ("causal", axes.causal),
        ("dropout", axes.dropout_bits),
        ("deterministic", axes.deterministic),
    ):
        _check_no_repeats(document, field, values)
    return expand(axes)


def _listed(value: T | list[T]) -> tuple[T, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _check_no_repeats(document: Document, field: str, values: Sequence[object]) -> None:
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        if value in first:
            raise document.error(
                document.value_mark((field, index)),
                f"{field}[{index}]: expected a value of its own, got what "
                f"{field}[{first[value]}] means already. Remove one.",
            )
        first[value] = index


def _arch(document: Document, fields: SpecFields) -> tuple[str, ...]:
    several = isinstance(fields.arch, list)
    names = []
    for index in range(len(_listed(fields.arch))):
        path = ("arch", index) if several else ("arch",)
        names.append(_target_name(document, path))
    _check_no_repeats(document, "arch", names)
    return tuple(names)


def _target_name(document: Document, path: tuple[str | int, ...]) -> str:
    """The canonical name of a target, from its text: YAML makes a number of 9.0."""
    text = document.text_at(path).strip("'\"")
    try:
        return parse_target(text).name
    except TargetError as error:
        message = str(error).removeprefix("target: ")
        raise document.error(document.value_mark(path), f"arch: {message}") from None


def _check_dtypes(document: Document, fields: SpecFields, arch: tuple[str, ...]) -> None:
    if not arch or "cpu" in arch:
        return
    several = isinstance(fields.dtype, list)
    dtypes: tuple[Dtype, ...] = _listed(fields.dtype)
    for index, dtype in enumerate(dtypes):
        if dtype not in GPU_DTYPES:
            raise document.error(
                document.value_mark(("dtype", index) if several else ("dtype",)),
                f"dtype: expected one of {', '.join(GPU_DTYPES)} for {', '.join(arch)}, "
                f"got {dtype}, which runs on cpu only. Add cpu to arch, or change the dtype.",
            )


def _name(document: Document, name: str, variants: tuple[Variant, ...]) -> str:
    try:
        named = parse_key(name)
    except SpecError:
        return name
    if document.has(("name",)) and variants != (named,):
        raise document.error(
            document.value_mark(("name",)),
            f"name: expected a name that isn't another variant's key, got {name!r}. "
            f"Choose another; this spec stands for {variants[0].key}"
            f"{' and others' if len(variants) > 1 else ''}.",
        )
    return name


def _check_names(documents: Sequence[Document], specs: Sequence[Spec]) -> None:
    seen: dict[str, Spec] = {}
    for document, spec in zip(documents, specs, strict=True):
        if not spec.name:
            raise document.error(
                document.mark, "name: expected a name in a file of several specs, got none. Add it."
            )
        if spec.name in seen:
            raise document.error(
                document.value_mark(("name",)),
                f"name: expected a name of its own, got {spec.name!r}, "
                f"which the spec on line {seen[spec.name].line} has. Rename one.",
            )
        seen[spec.name] = spec
