"""Documents -> Specs: validated, canonical, expanded to variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeVar

from msgspec import UNSET

from .arch import parse_target
from .body_source import read_body
from .convert import convert
from .errors import SpecError, TargetError
from .expand import expand
from .matrix import axes_of, check_no_repeats
from .pins import Pin, read_pins
from .sense import check_sense
from .spec_fields import PassName, SinkFields, SpecFields
from .variant import MAX_HEAD_DIM, PASSES, Variant, is_key
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
    check_sense(document, fields, variants, arch)
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
    axes = axes_of(document, fields)
    sink: Literal["", "learned", "fixed"] = ""
    if fields.sink is not False:
        learned = fields.sink is True or (isinstance(fields.sink, SinkFields) and fields.sink.grad)
        sink = "learned" if learned else "fixed"
    blocks = fields.block_mask
    base = Variant(
        head_dim=MAX_HEAD_DIM,
        head_dim_v=MAX_HEAD_DIM,
        dtype="bf16",
        sink=sink,
        block_mask=None if blocks is UNSET else (blocks.q, blocks.kv),
        body=read_body(document, fields),
    )
    return expand(axes, base)


def _listed(value: T | list[T]) -> tuple[T, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _arch(document: Document, fields: SpecFields) -> tuple[str, ...]:
    several = isinstance(fields.arch, list)
    names = []
    for index in range(len(_listed(fields.arch))):
        path = ("arch", index) if several else ("arch",)
        names.append(_target_name(document, path))
    check_no_repeats(document, "arch", names)
    return tuple(names)


def _target_name(document: Document, path: tuple[str | int, ...]) -> str:
    """The canonical name of a target, from its text: YAML makes a number of 9.0."""
    text = document.text_at(path).strip("'\"")
    try:
        return parse_target(text).name
    except TargetError as error:
        message = str(error).removeprefix("target: ")
        raise document.error(document.value_mark(path), f"arch: {message}") from None


def _name(document: Document, name: str, variants: tuple[Variant, ...]) -> str:
    keys = tuple(variant.key for variant in variants)
    if document.has(("name",)) and is_key(name) and keys != (name,):
        raise document.error(
            document.value_mark(("name",)),
            f"name: expected a name that isn't another variant's key, got {name!r}. "
            f"Choose another; this spec stands for {keys[0]}"
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
