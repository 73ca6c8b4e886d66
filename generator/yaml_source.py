"""YAML text -> Documents: plain data with the line and column of every key and value.

Built on libyaml's events rather than on a constructor: no tag is ever acted upon, so no code can
run; nesting and alias expansion are bounded while reading; scalars resolve as YAML 1.2 has it
(``1e-3`` is a float, ``yes`` and ``on`` are strings).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import yaml

from .errors import SpecError
from .yaml_places import character_offsets, lines_of, offset_of, place_of, underlined
from .yaml_traps import remedy_of_syntax

MAX_TEXT_CHARS = 1 << 20
MAX_NODES = 20_000  # per file, aliases expanded
MAX_DEPTH = 32

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml: slower, the same

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the top of a document to a value."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    mark: Mark
    node: _Node


@dataclass(frozen=True, slots=True)
class _Node:
    """A value: exactly one of the three kinds; ``size`` counts it and all below it."""

    mark: Mark
    size: int
    scalar: Any = None
    text: str | None = None  # of a scalar, as written
    items: tuple[_Node, ...] | None = None
    entries: tuple[_Entry, ...] | None = None
    source: Mark | None = None  # of an alias: where its value was written

    def plain(self) -> Any:
        if self.entries is not None:
            return {entry.key: entry.node.plain() for entry in self.entries}
        if self.items is not None:
            return [item.plain() for item in self.items]
        return self.scalar


@dataclass(frozen=True, slots=True)
class Document:
    """One value at the top of a YAML file, and where each of its parts was written."""

    file: str
    root: _Node
    text: str = ""

    @property
    def mark(self) -> Mark:
        """Where the value starts."""
        return self.root.mark

    def plain(self) -> Any:
        """The value as dict, list, str, int, float, bool and None."""
        return self.root.plain()

    def items(self) -> tuple[Document, ...] | None:
        """A top-level list's elements as documents of their own; None for another value."""
        if self.root.items is None:
            return None
        return tuple(Document(self.file, item, self.text) for item in self.root.items)

    def value_mark(self, path: Path) -> Mark:
        """Where the value at ``path`` starts; of the nearest enclosing value if it is absent."""
        *_, last = self._walk(path)
        return last.mark

    def key_mark(self, path: Path) -> Mark:
        """Where the key that ends ``path`` was written."""
        *_, parent = self._walk(path[:-1])
        for entry in parent.entries or ():
            if entry.key == path[-1]:
                return entry.mark
        return parent.mark

    def value_at(self, path: Path) -> Any:
        """The plain value at ``path``; None if it is absent."""
        node = self._node_at(path)
        return None if node is None else node.plain()

    def has(self, path: Path) -> bool:
        """Whether something was written at ``path``."""
        return self._node_at(path) is not None

    def text_at(self, path: Path) -> str:
        """The value at ``path`` as written if it is a scalar, else its kind in words."""
        *_, node = self._walk(path)
        if node.entries is not None:
            return "a mapping"
        if node.items is not None:
            return "a list" if node.items else "an empty list"
        if node.scalar is None:
            return "nothing" if not node.text else node.text
        return repr(_shortened(node.text)) if isinstance(node.scalar, str) else str(node.text)

    def scalar_text(self, path: Path) -> str:
        """The scalar at ``path`` as text, whatever type YAML takes it for; "" for no scalar."""
        node = self._node_at(path)
        return node.text or "" if node is not None else ""

    def error_in(self, path: Path, start: int, end: int, message: str) -> SpecError:
        """A SpecError at characters of the scalar at ``path``, with its line and a caret.

        Args:
            path: of the scalar.
            start: index of the first character in its value.
            end: index past the last.
            message: what is wrong.
        """
        *_, node = self._walk(path)
        mark = node.source or node.mark
        begin = offset_of(self.text, mark.line, mark.column)
        offsets = character_offsets(self.text, begin, node.text or "")
        line, column = place_of(self.text, offsets[min(start, len(offsets) - 1)])
        last_line, last = place_of(self.text, offsets[min(end, len(offsets)) - 1])
        width = last - column + 1 if last_line == line else 1
        shown = underlined(lines_of(self.text)[line - 1], column, width)
        return self.error(Mark(line, column), f"{message}\n{shown}")

    def error(self, mark: Mark, message: str) -> SpecError:
        """A SpecError whose message starts with ``file:line:column``."""
        return SpecError(f"{self.file}:{mark.line}:{mark.column}: {message}")

    def _node_at(self, path: Path) -> _Node | None:
        nodes = list(self._walk(path))
        return nodes[-1] if len(nodes) == len(path) + 1 else None

    def _walk(self, path: Path) -> Iterator[_Node]:
        node = self.root
        yield node
        for step in path:
            below: _Node | None = None
            if isinstance(step, int):
                below = (node.items or ())[step] if step < len(node.items or ()) else None
            else:
                below = next((e.node for e in node.entries or () if e.key == step), None)
            if below is None:
                return
            node = below
            yield node


def decode(data: bytes, file: str) -> str:
    """The text of a spec file: UTF-8, with or without a byte order mark.

    Raises:
        SpecError: when it is not UTF-8; names the line.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise SpecError(
            f"{file}:{line}:{column}: expected UTF-8 text, got byte 0x{data[error.start]:02x}. "
            "Save the file as UTF-8."
        ) from None


def read_documents(text: str, file: str) -> tuple[Document, ...]:
    """The documents of a YAML file, those that are empty left out.

    Raises:
        SpecError: on anything that is not plain YAML data; starts with ``file:line:column``.
    """
    text = text.removeprefix("\ufeff")
    _check_characters(text, file)
    try:
        nodes = list(_Composer(text, file).documents())
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except yaml.YAMLError as error:
        raise SpecError(f"{file}:1:1: expected YAML, got {_one_line(str(error))}.") from None
    return tuple(Document(file, node, text) for node in nodes if not _is_empty(node))


def _is_empty(node: _Node) -> bool:
    return node.text == ""


class _Composer:
    """Builds nodes from parser events, with anchors copied by reference and counted in full."""

    def __init__(self, text: str, file: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
        self._file = file
        self._anchors: dict[str, _Node | None] = {}
        self._count = 0

    def documents(self) -> Iterator[_Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._node(next(self._events), 1)

    def _node(self, event: Any, depth: int) -> _Node:
        mark = _mark(event.start_mark)
        if depth > MAX_DEPTH:
            self._fail(mark, f"expected at most {MAX_DEPTH} levels of nesting, got more.")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, mark)
        self._check_tag(event, mark)
        self._counted(1, mark)
        if event.anchor:
            self._anchors[event.anchor] = None  # unfinished: an alias to it would be a cycle
        if isinstance(event, yaml.ScalarEvent):
            plain = event.implicit[0]
            value = self._resolve(event.value, mark) if plain else event.value
            text = event.value if plain else (event.value or '""')
            node = _Node(mark, 1, scalar=value, text=text)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(mark, depth)
        else:
            node = self._mapping(mark, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, mark: Mark, depth: int) -> _Node:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return _Node(mark, 1 + sum(n.size for n in items), items=tuple(items))

    def _mapping(self, mark: Mark, depth: int) -> _Node:
        entries: dict[str, _Entry] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            at = _mark(event.start_mark)
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(at, "expected a name as the key, got a list, mapping or alias.")
            self._check_tag(event, at)
            key = event.value
            if key in entries:
                first = entries[key].mark.line
                self._fail(at, f"{key}: duplicate key, first on line {first}. Remove one.")
            entries[key] = _Entry(key, at, self._node(next(self._events), depth + 1))
        size = 1 + sum(e.node.size for e in entries.values())
        return _Node(mark, size, entries=tuple(entries.values()))

    def _alias(self, event: Any, mark: Mark) -> _Node:
        if event.anchor not in self._anchors:
            self._fail(
                mark,
                f"expected an anchor &{event.anchor} before its alias, got none. An expression "
                "stands in quotes.",
            )
        node = self._anchors[event.anchor]
        if node is None:
            self._fail(mark, f"*{event.anchor} stands inside its own anchor. Write it out.")
        self._counted(node.size, mark)
        return replace(node, mark=mark, source=node.source or node.mark)

    def _counted(self, nodes: int, mark: Mark) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            self._fail(
                mark,
                f"expected at most {MAX_NODES} values in a file, aliases written out, got more. "
                "Split it into several files.",
            )

    def _check_tag(self, event: Any, mark: Mark) -> None:
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._fail(
                mark,
                f"expected plain YAML, got the tag {tag}. Remove it, nothing is run; an "
                "expression stands in quotes.",
            )

    def _resolve(self, text: str, mark: Mark) -> Any:
        if len(text) > 40 and _INT.fullmatch(text):
            self._fail(mark, f"expected a number of at most 40 digits, got {len(text)}.")
        return resolve_scalar(text)

    def _fail(self, mark: Mark, message: str) -> NoReturn:
        raise SpecError(f"{self._file}:{mark.line}:{mark.column}: {message}")


_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def resolve_scalar(text: str) -> Any:
    """The value of a plain scalar by the YAML 1.2 core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float(text.replace(".", "").lower())
    return float("nan") if text in (".nan", ".NaN", ".NAN") else text


_NOT_YAML = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)  # YAML 1.2, production c-printable


def _check_characters(text: str, file: str) -> None:
    if len(text) > MAX_TEXT_CHARS:
        raise SpecError(
            f"{file}:1:1: expected at most {MAX_TEXT_CHARS} characters, got {len(text)}. "
            "Split it into several files."
        )
    if found := _NOT_YAML.search(text):
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        raise SpecError(
            f"{file}:{line}:{column}: expected printable text, "
            f"got the character U+{ord(found[0]):04X}. Remove it."
        )


def _syntax_error(error: yaml.MarkedYAMLError, text: str, file: str) -> SpecError:
    place = error.problem_mark or error.context_mark
    mark = _mark(place) if place is not None else Mark(1, 1)
    for number, line in enumerate(text.splitlines()[: mark.line], start=1):
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent:
            return SpecError(
                f"{file}:{number}:{indent.index(chr(9)) + 1}: "
                "expected spaces, got a tab. Indent with spaces."
            )
    what = _one_line(", ".join(part for part in (error.context, error.problem) if part))
    line = [*lines_of(text), ""][mark.line - 1]
    remedy = remedy_of_syntax(line, mark.column, what)
    where = f"{file}:{mark.line}:{mark.column}"
    return SpecError(f"{where}: expected YAML, got an error: {what}. {remedy}".rstrip())


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _one_line(text: str) -> str:
    return _shortened(" ".join(text.split()).rstrip("."))


def _shortened(text: str | None, limit: int = 80) -> str:
    text = text or ""
    return text if len(text) <= limit else text[: limit - 3] + "..."
