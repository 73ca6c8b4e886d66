"""Document -> SpecFields: msgspec decides, and each refusal is worded for the spec's author."""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

import msgspec

from .errors import SpecError
from .spec_fields import (
    EXPECTED,
    FUTURE_FIELDS,
    DropoutBits,
    HeadDims,
    PassTuning,
    Pin,
    SpecFields,
)
from .variant import DTYPES, PASSES, SPELLINGS, head_dim_remedy
from .version import VERSION
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
    fields: SpecFields = _checked(document, (), data, SpecFields)
    return msgspec.structs.replace(fields, tuning=_tuning(document, tuning))


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
        expected = EXPECTED.get(missing[1], "a multiple of 8 from 8 to 256")
        return document.error(
            document.value_mark(path),
            f"{where}expected the field {missing[1]}, got none. Add '{missing[1]}:' ({expected}).",
        )
    return _wrong(document, path)


def _unknown_field(document: Document, path: Path, name: str) -> SpecError:
    kind = _struct_at(path)
    allowed = _fields_of(kind)
    mark = document.key_mark((*path, name))
    if kind is SpecFields and name in FUTURE_FIELDS:
        return document.error(
            mark,
            f"{name}: not supported yet by flashgen {VERSION}. Allowed fields: {allowed}.",
        )
    near = difflib.get_close_matches(name.lower(), kind.__struct_fields__, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    where = f"{_dotted(path)}: " if path else ""
    return document.error(mark, f"{where}unknown field {name!r}. {hint}Allowed fields: {allowed}.")


def _struct_at(path: Path) -> type[msgspec.Struct]:
    """The structure whose fields are written at ``path``."""
    below: dict[str, type[msgspec.Struct]] = {
        "head_dim": HeadDims,
        "dropout": DropoutBits,
        "tuning": PassTuning,
    }
    return below[str(path[0])] if path else SpecFields


def _fields_of(kind: type[msgspec.Struct]) -> str:
    return ", ".join(kind.__struct_fields__)


def _wrong(document: Document, path: Path) -> SpecError:
    """The value at ``path`` is not what its field takes."""
    field = str(path[0])
    expected = EXPECTED[field]
    if field == "head_dim" and path[-1] in ("qk", "v"):
        expected = "a multiple of 8 from 8 to 256"
    if field == "dropout" and path[-1] == "bits":
        expected = "8 or 16"
    if field == "tuning" and len(path) > 3:
        expected = "an integer, true, false or a word"
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
    if isinstance(value, float) and value.is_integer() and field in ("head_dim", "tuning"):
        return f" Write {int(value)}."
    if not isinstance(value, str):
        return ""
    if field in ("causal", "dropout", "deterministic") and value.lower() in _YAML_1_1:
        return f" Write {_YAML_1_1[value.lower()]}."
    if field in ("head_dim", "causal", "dropout", "deterministic"):
        unquoted = value.isdecimal() or value in ("true", "false")
        return " Write it without quotes." if unquoted else ""
    words = {"dtype": DTYPES, "passes": PASSES}.get(field, ())
    guess = SPELLINGS.get(value.lower().removeprefix("torch."), "")
    near = [guess] if guess in words else difflib.get_close_matches(value.lower(), words, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
