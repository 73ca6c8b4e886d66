"""Document -> SpecFields: msgspec decides, and each refusal is worded for the spec's author."""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

import msgspec

from .body import AXES, CAPTURE_DTYPES
from .errors import SpecError
from .expression.names import check_name
from .expression.tokens import MAX_CHARS
from .spec_fields import (
    EXPECTED,
    EXPECTED_BELOW,
    RESERVED,
    BlockMaskFields,
    CaptureFields,
    DropoutBits,
    Expression,
    HeadDims,
    ParamValue,
    PassTuning,
    Pin,
    RuntimeParam,
    SinkFields,
    SpecFields,
    WindowFields,
)
from .split import split_expression
from .variant import DTYPES, PASSES, SPELLINGS, head_dim_remedy
from .yaml_source import Document, Path

_STEP = re.compile(r"\.(\w+)|\[([0-9]+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_YAML_1_1: Final = {"yes": "true", "on": "true", "y": "true"} | {
    "no": "false",
    "off": "false",
    "n": "false",
}


def convert(document: Document) -> SpecFields:
    """The fields of one spec.

    Raises:
        SpecError: with the place, what was expected, what came and what to do.
    """
    data = document.plain()
    if not isinstance(data, dict):
        raise document.error(
            document.mark,
            f"expected a spec (fields such as 'head_dim: 64'), got {document.text_at(())}. "
            f"Allowed fields: {_fields_of(SpecFields)}.",
        )
    # msgspec doesn't say which key of a mapping it refuses, so these are walked here
    tuning = data.pop("tuning", {})
    mappings = {field: data.pop(field) for field in _MAPPINGS if field in data}
    fields: SpecFields = _checked(document, (), data, SpecFields)
    _check_true(document, fields)
    return msgspec.structs.replace(
        fields,
        tuning=_tuning(document, tuning),
        **{field: _mapping(document, field, value) for field, value in mappings.items()},
    )


_MAPPINGS: Final[dict[str, Any]] = {
    "captures": CaptureFields,
    "params": ParamValue,
    "let": Expression,
}
"""Fields that map names of the author's choice to values of one kind."""


def _mapping(document: Document, field: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise _wrong(document, (field,))
    checked = {}
    for name, value in values.items():
        if split := split_expression(document, (field,), name):
            raise split
        if why := check_name(name, is_argument=field != "let"):
            raise document.error(document.key_mark((field, name)), f"{field}: {why}")
        checked[name] = _checked(document, (field, name), value, _MAPPINGS[field])
    return checked


def _check_true(document: Document, fields: SpecFields) -> None:
    """``window: true`` and ``softcap: true`` don't say how much."""
    for field in ("window", "softcap"):
        value = getattr(fields, field)
        several = isinstance(value, list)
        for index, item in enumerate(value if several else [value]):
            if item is True:
                raise _wrong(document, (field, index) if several else (field,))


def _tuning(document: Document, tuning: Any) -> dict[str, PassTuning]:
    if not isinstance(tuning, dict):
        raise _wrong(document, ("tuning",))
    return {
        target: _pass_tuning(document, ("tuning", target), passes)
        for target, passes in tuning.items()
    }


def _pass_tuning(document: Document, path: Path, passes: Any) -> PassTuning:
    if isinstance(passes, dict):
        for pass_name, pins in passes.items():
            for field, value in pins.items() if isinstance(pins, dict) else ():
                _checked(document, (*path, pass_name, field), value, Pin)
    checked: PassTuning = _checked(document, path, passes, PassTuning)
    return checked


def _checked(document: Document, prefix: Path, data: Any, kind: Any) -> Any:
    try:
        # in a list, so that every message ends in a place, whatever names the spec has
        (checked,) = msgspec.convert([data], list[kind])
    except msgspec.ValidationError as error:
        raise _explained(document, prefix, str(error)) from None
    return checked


def _explained(document: Document, prefix: Path, message: str) -> SpecError:
    """The SpecError for msgspec's ``message``, "problem - at `$[0].path`", below ``prefix``."""
    problem, _, place = message.rpartition(" - at `$[0]")
    path = prefix + tuple(name or int(index) for name, index in _STEP.findall(place))
    if unknown := _UNKNOWN.fullmatch(problem):
        return _unknown_field(document, path, unknown[1])
    if missing := _MISSING.fullmatch(problem):
        where = f"{_dotted(path)}: " if path else ""
        expected = EXPECTED_BELOW.get((str(path[0]), missing[1])) if path else EXPECTED[missing[1]]
        return document.error(
            document.value_mark(path),
            f"{where}expected the field {missing[1]}, got none. Add '{missing[1]}:' ({expected}).",
        )
    return _wrong(document, path)


def _unknown_field(document: Document, path: Path, name: str) -> SpecError:
    kind = _struct_at(path)
    allowed = _fields_of(kind)
    mark = document.key_mark((*path, name))
    if kind is SpecFields and (split := split_expression(document, path, name)):
        return split
    near = difflib.get_close_matches(name.lower(), kind.__struct_fields__, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    where = f"{_dotted(path)}: " if path else ""
    return document.error(mark, f"{where}unknown field {name!r}. {hint}Allowed fields: {allowed}.")


def _struct_at(path: Path) -> type[msgspec.Struct]:
    """The structure whose fields are written at ``path``."""
    return _BELOW[str(path[0])] if path else SpecFields


_BELOW: Final[dict[str, type[msgspec.Struct]]] = {
    "head_dim": HeadDims,
    "dropout": DropoutBits,
    "window": WindowFields,
    "sink": SinkFields,
    "block_mask": BlockMaskFields,
    "captures": CaptureFields,
    "params": RuntimeParam,
    "tuning": PassTuning,
}


def _fields_of(kind: type[msgspec.Struct]) -> str:
    return ", ".join(kind.__struct_fields__)


_EXPECTED_VALUE: Final = {
    "captures": "{dims: [seqlen_k], dtype: int32}",
    "params": "a number, {runtime: int} or {runtime: float}",
    "let": "an expression in quotes",
}


def _wrong(document: Document, path: Path) -> SpecError:
    """The value at ``path`` is not what its field takes."""
    field = str(path[0])
    below = [step for step in path[1:] if (field, step) in EXPECTED_BELOW]
    expected = EXPECTED_BELOW[field, str(below[0])] if below else EXPECTED[field]
    if field == "tuning" and len(path) > 3:
        expected = "an integer, true, false or a word"
    if path[2:3] == ("dims",) and len(path) == 4:
        expected = f"a positive integer, a param or one of {', '.join(AXES)}"
    if field in _MAPPINGS and len(path) == 2:
        expected = _EXPECTED_VALUE[field]
    remedy = _remedy(document, path, field)
    return document.error(
        document.value_mark(path),
        f"{_dotted(path)}: expected {expected}, got {document.text_at(path)}.{remedy}",
    )


def _remedy(document: Document, path: Path, field: str) -> str:
    """What to do about the value at ``path``, or nothing where that is plain."""
    value = document.value_at(path)
    if value is None:
        return f" Give {_dotted(path)} a value, or remove it."
    if value == []:
        return " Give the list a value, or remove the field."
    if isinstance(value, int) and not isinstance(value, bool) and field == "head_dim":
        return f" {head_dim_remedy(value)}"
    if (
        isinstance(value, float)
        and value.is_integer()
        and (field in ("head_dim", "tuning", "window", "block_mask"))
    ):
        return f" Write {int(value)}."
    if field == "window" and isinstance(value, int) and value < 0:
        return " Leave the bound out for none."
    return _remedy_of_word(value, path, field) if isinstance(value, str) else ""


_SWITCHES: Final = (
    "causal", "window", "softcap", "alibi", "sink", "dropout", "deterministic", "grad"
)  # fmt: skip
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "dtype": (*DTYPES, *CAPTURE_DTYPES),
    "passes": PASSES,
    "layout": ("dense", "varlen"),
    "causal": ("top_left",),
    "window": ("runtime",),
    "softcap": ("runtime",),
    "runtime": ("int", "float"),
}
"""What a field takes that is a word, the inner field's name before the outer's."""


def _remedy_of_word(value: str, path: Path, field: str) -> str:
    """What to do about a word that is not one that the value at ``path`` takes."""
    inner = next((str(step) for step in reversed(path) if isinstance(step, str)), field)
    if reserved := RESERVED.get(field, {}).get(value.lower()):
        return f" {reserved}"
    if inner in _SWITCHES and value.lower() in _YAML_1_1:
        return f" Write {_YAML_1_1[value.lower()]}."
    number = value.replace(".", "", 1).isdecimal() and field in _NUMBERS
    if (value in ("true", "false") and inner in _SWITCHES) or number:
        return " Write it without quotes."
    words = _WORDS.get(inner, ())
    if field == "dtype":
        words = DTYPES
    elif inner == "dtype":
        words = CAPTURE_DTYPES
    if path[0] in ("mask", "score", "let") and len(value) > MAX_CHARS:
        return f" Shorten it to {MAX_CHARS} characters, by 'let:'."
    guess = SPELLINGS.get(value.lower().removeprefix("torch."), "")
    near = [guess] if guess in words else difflib.get_close_matches(value.lower(), words, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


_NUMBERS: Final = ("head_dim", "window", "softcap", "block_mask", "dropout", "params")
"""Fields that take numbers, which quotes make words of."""


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
