"""What YAML makes of an expression without quotes -> a sentence that says so."""

from __future__ import annotations

import re

_QUOTE = "Put an expression in quotes."
_NAME_BEFORE = re.compile(r"[A-Za-z0-9_)\]]$")
_PARTLY_QUOTED = re.compile(r"""^\s*[\w-]+\s*:\s*(?:"[^"]*"|'[^']*')\s*[^\s#,}\]]""")


def remedy_of_syntax(line: str, column: int, problem: str) -> str:
    """What to do about an error of YAML's grammar; "" where it is no expression's.

    Args:
        line: the line at fault.
        column: where in it, from 1.
        problem: what the YAML parser says.
    """
    if _PARTLY_QUOTED.match(line):
        return "Put the whole value in quotes, not its first part."
    at, before = line[column - 1 : column], line[: column - 1]
    if at in ("[", "{") and _NAME_BEFORE.search(before):
        return f"YAML takes {at!r} for a list or mapping of its own inside {{...}}. {_QUOTE}"
    if "mapping values are not allowed" in problem:
        return "YAML takes ': ' for the end of a key. Put a value that has one in quotes."
    if "cannot start any token" in problem:
        return f"No plain value starts with {at!r}. {_QUOTE}"
    if "block scalar" in problem:
        return f"YAML takes a '>' or '|' in front for a block of text. {_QUOTE}"
    if "entries are not allowed" in problem or "keys are not allowed" in problem:
        return f"YAML takes {at!r} in front for a list or a key. {_QUOTE}"
    return ""
