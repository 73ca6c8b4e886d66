"""Character of a scalar's value -> its place in the file, through quotes, folds and blocks."""

from __future__ import annotations

import re

_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what libyaml counts as the end of a line
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\r\n]*)?(?:\r\n|[\r\n\x85\u2028\u2029])")
_JOINED = re.compile(r"\\(?:\r\n|[\r\n\x85\u2028\u2029])[ \t]*")  # a line that goes on, in quotes
_ESCAPED_CHARS = {"x": 2, "u": 4, "U": 8}


def lines_of(text: str) -> list[str]:
    """The lines of a file as YAML counts them."""
    return _BREAK.split(text)


def offset_of(text: str, line: int, column: int) -> int:
    """The index in ``text`` of a place, line and column counted from 1."""
    start = 0
    for _ in range(line - 1):
        found = _BREAK.search(text, start)
        if found is None:
            break
        start = found.end()
    return min(start + column - 1, len(text))


def place_of(text: str, offset: int) -> tuple[int, int]:
    """(line, column), from 1, of an index in ``text``."""
    line, start = 1, 0
    for found in _BREAK.finditer(text, 0, offset):
        if found.end() > offset:
            break
        line, start = line + 1, found.end()
    return line, offset - start + 1


def character_offsets(text: str, start: int, value: str) -> list[int]:
    """Where each character of a scalar's ``value`` was written, and where the value ends.

    Args:
        text: the file.
        start: index of the scalar's first character, its anchor or quote included.
        value: what the scalar means.

    Returns:
        An index in ``text`` for each character of ``value`` and one for its end. Blanks may be a
        little off. Where the two can't be matched, every index is the scalar's start.
    """
    properties = _PROPERTIES.match(text, start)
    start = properties.end() if properties else start
    style = text[start : start + 1]
    source = start
    if style in ("'", '"'):
        source += 1
    elif header := _BLOCK_HEADER.match(text, start):
        source = header.end()
    offsets = []
    for character in value:
        while style == '"' and (joined := _JOINED.match(text, source)):
            source = joined.end()
        if not character.isspace():
            while source < len(text) and text[source].isspace():
                source += 1
        at = source
        width = _written_width(text, source, character, style)
        if width is None:
            return [start] * (len(value) + 1)
        offsets.append(at)
        source += width
    return [*offsets, source]


def _written_width(text: str, source: int, character: str, style: str) -> int | None:
    """How many characters at ``source`` stand for ``character``; None if they don't."""
    written = text[source : source + 1]
    if style == '"' and written == "\\":
        return 2 + _ESCAPED_CHARS.get(text[source + 1 : source + 2], 0)
    if character.isspace():
        return 1 if written.isspace() else 0
    if written != character:
        return None
    return 2 if style == "'" and character == "'" else 1


SHOWN_CHARS = 100


def underlined(line: str, column: int, width: int) -> str:
    """Two lines: ``line``, cut to what fits around ``column``, and a caret with tildes below.

    Args:
        line: a line of a file.
        column: where the caret goes, from 1.
        width: how many characters to underline.
    """
    first = max(0, min(column - SHOWN_CHARS // 2, len(line) - SHOWN_CHARS))
    shown = line[first : first + SHOWN_CHARS].replace("\t", " ")
    before = "..." if first else ""
    after = "..." if first + SHOWN_CHARS < len(line) else ""
    blanks = " " * (len(before) + column - 1 - first)
    tildes = "~" * (max(1, min(width, first + len(shown) - column + 1)) - 1)
    return f"  {before}{shown}{after}\n  {blanks}^{tildes}"
