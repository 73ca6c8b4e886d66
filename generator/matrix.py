"""SpecFields -> the axes of its matrix, each value as a variant has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SpecError
from .expand import MAX_VARIANTS, Axis, size_of
from .spec_fields import DropoutBits, HeadDims, SpecFields, WindowFields
from .variant import Window
from .yaml_source import Document


@dataclass(frozen=True, slots=True)
class _AxisKind:
    """One field that may be a list, and what one of its values makes of a variant."""

    field: str
    sets: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]] = lambda value: (value,)


def _window(value: Any) -> tuple[Window | None]:
    if isinstance(value, WindowFields):
        return (Window(value.left, value.right),)
    return (Window(runtime=True) if value == "runtime" else None,)


_KINDS = (
    _AxisKind(
        "head_dim",
        ("head_dim", "head_dim_v"),
        lambda d: (d.qk, d.v) if isinstance(d, HeadDims) else (d, d),
    ),
    _AxisKind("dtype", ("dtype",)),
    _AxisKind("layout", ("layout",)),
    _AxisKind("causal", ("causal",)),
    _AxisKind("window", ("window",), _window),
    _AxisKind("softcap", ("softcap",), lambda cap: (None if cap is False else cap,)),
    _AxisKind("alibi", ("alibi",)),
    _AxisKind(
        "dropout",
        ("dropout_bits",),
        lambda d: (d.bits if isinstance(d, DropoutBits) else 8 * d,),
    ),
    _AxisKind("deterministic", ("deterministic",)),
)
"""In the order in which a matrix varies, the last fastest."""


def axes_of(document: Document, fields: SpecFields) -> tuple[Axis, ...]:
    """The axes of a spec.

    Raises:
        SpecError: when the matrix is too large, a list repeats a value, or a value says nothing.
    """
    axes = tuple(_axis(kind, fields) for kind in _KINDS)
    if size_of(axes) > MAX_VARIANTS:
        raise document.error(
            document.mark,
            f"expected a matrix of at most {MAX_VARIANTS} variants, got {size_of(axes)}. Shorten "
            "its lists: a key that no spec lists, such as d80-bf16-causal, loads all the same.",
        )
    for axis in axes:
        for index, (value, *_) in enumerate(axis.values):
            if value == Window():
                several = isinstance(getattr(fields, axis.field), list)
                raise _unbounded(document, (axis.field, index) if several else (axis.field,))
        check_no_repeats(document, axis.field, axis.values)
    return axes


def _axis(kind: _AxisKind, fields: SpecFields) -> Axis:
    written = getattr(fields, kind.field)
    values = written if isinstance(written, list) else [written]
    return Axis(kind.field, kind.sets, tuple(kind.read(value) for value in values))


def _unbounded(document: Document, path: tuple[str | int, ...]) -> SpecError:
    return document.error(
        document.value_mark(path),
        "window: expected a bound, left or right, got neither. Give one, or write false.",
    )


def check_no_repeats(document: Document, field: str, values: Sequence[object]) -> None:
    """Refuse a list that says one thing twice.

    Raises:
        SpecError: at the second.
    """
    first: dict[object, int] = {}
    for index, value in enumerate(values):
        if value in first:
            raise document.error(
                document.value_mark((field, index)),
                f"{field}[{index}]: expected a value of its own, got what "
                f"{field}[{first[value]}] means already. Remove one.",
            )
        first[value] = index
