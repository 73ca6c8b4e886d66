"""Unquoted expressions that YAML cuts to pieces -> the error that says so."""

from __future__ import annotations

import itertools

from .errors import SpecError
from .yaml_source import Document, Path

_PAIRS = (("(", ")"), ("[", "]"))


def split_expression(document: Document, path: Path, key: str) -> SpecError | None:
    """The error for ``{m: min(a, b)}``, of which YAML makes ``m: min(a`` and ``b)``.

    Args:
        document: the spec.
        path: of the mapping that ``key`` is in.
        key: one that is no name of a field.

    Returns:
        None where ``key`` is no such leftover.
    """
    mapping = document.value_at(path)
    if not isinstance(mapping, dict) or mapping[key] is not None:
        return None
    keys = list(mapping)
    before = keys[: keys.index(key)]
    while before and mapping[before[-1]] is None:
        before.pop()  # an earlier leftover of the same expression
    if not before:
        return None
    owner = before[-1]
    rest = itertools.takewhile(lambda k: mapping[k] is None, keys[keys.index(owner) + 1 :])
    pieces = [document.scalar_text((*path, owner)), *rest]
    start = pieces[0]
    if not any(start.count(opening) > start.count(closing) for opening, closing in _PAIRS):
        return None
    whole = ", ".join(pieces)
    where = ".".join(map(str, (*path, owner)))
    return document.error(
        document.value_mark((*path, owner)),
        f"{where}: expected an expression in quotes, got {start!r}, where YAML splits it at its "
        f'comma. Write {owner}: "{whole}".',
    )
