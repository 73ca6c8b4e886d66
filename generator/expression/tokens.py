"""Expression text -> checked tokens: whatever Python's parser should never see stops here.

One pass, left to right: characters, words, nesting, and whether values and operators alternate.
So the first mistake is what an error points at, and its column is exact.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..ir.nodes import FUNCTIONS
from .errors import ExpressionError
from .names import nearest

MAX_CHARS = 4000
MAX_NESTING = 32
MAX_DIGITS = 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]*|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<op>\*\*|//|<<|>>|<=|>=|==|!=|<>|:=|->|&&|\|\||[-+*/%&|^<>()\[\],])"
    r"|(?P<other>\S))",
    re.ASCII,
)
_WORD_REST = re.compile(r"[A-Za-z0-9_.]*", re.ASCII)
_REFUSED = {
    "**": "'**' is no operator here. Write x * x for a square, exp2(x) for a power of two.",
    "&&": "'&&' is no operator here. Write 'and'.",
    "||": "'||' is no operator here. Write 'or'.",
    "!": "'!' is no operator here. Write 'not', or '!=' for unequal.",
    "<>": "'<>' is no operator here. Write '!='.",
    "=": "'=' is no operator here. Write '==' to compare; names are given below 'let:'.",
    ":=": "':=' is no operator here. Give names below 'let:'.",
    "?": "'?' is no operator here. Write 'a if condition else b'.",
    "~": "'~' is no operator here. Write 'not' for a bool, '-1 - x' for the bits of an int.",
    "@": "'@' is no operator here.",
    ".": "attributes are not part of the language.",
    "{": "sets and dicts are not part of the language.",
    "}": "sets and dicts are not part of the language.",
    ":": "slices and ':' are not part of the language. Index one element.",
    '"': "strings are not part of the language.",
    "'": "strings are not part of the language.",
    "#": "comments are not part of an expression. Put them above it in the YAML.",
    ";": "an expression is one value, without ';'.",
    "\\": "'\\' is not part of the language. A line may end anywhere.",
}
_BINARY = frozenset("+ - * / // % & | ^ << >> < <= > >= == != and or if else".split())
_PREFIX = frozenset(("+", "-", "not"))
_WORDS = frozenset(("and", "or", "not", "if", "else", "True", "False"))


@dataclass(frozen=True, slots=True)
class Token:
    """One word, number or operator, and its place."""

    kind: str  # "number", "name", "constant" or "op"
    text: str
    start: int
    end: int


def check_tokens(text: str, names: Collection[str] = ()) -> None:
    """Refuse ``text`` unless its tokens may be an expression.

    Args:
        text: the expression.
        names: those in scope, which a call of one of them is told apart by.

    Raises:
        ExpressionError: at the first character at fault.
    """
    if not text.strip():
        raise ExpressionError("expected an expression, got nothing.", 0, 1)
    shape = _Shape(names)
    for token in _tokens(text):
        shape.add(token)
        if token.end > MAX_CHARS:
            raise ExpressionError(
                f"expected at most {MAX_CHARS} characters, got {len(text)}. Split it by 'let:'.",
                MAX_CHARS,
                MAX_CHARS + 1,
            )
    shape.finish(len(text.rstrip()))


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or ""
        start, position = match.span(kind)
        word = match[kind]
        if kind == "other" or word in _REFUSED:
            raise ExpressionError(_other(word), start, position)
        if kind == "number":
            _check_number(text, word, start)
        elif kind == "word":
            kind = _word_kind(word, start)
        yield Token(kind, word, start, position)


def _other(character: str) -> str:
    if character in _REFUSED:
        return _REFUSED[character]
    return f"the character {character!r} (U+{ord(character):04X}) is not part of the language."


def _check_number(text: str, number: str, start: int) -> None:
    end = start + len(number)
    rest = _WORD_REST.match(text, end)
    if rest and rest[0]:
        whole = number + rest[0]
        remedy = " Write its digits without '_'." if "_" in whole else ""
        raise ExpressionError(f"expected a number, got {whole!r}.{remedy}", start, rest.end())
    if len(number) > MAX_DIGITS:
        raise ExpressionError(
            f"expected a number of at most {MAX_DIGITS} digits, got {len(number)}.", start, end
        )
    if re.fullmatch("0[0-9]+", number) or number in ("0x", "0X"):
        raise ExpressionError(
            f"expected a number, got {number!r}. Leave out the leading zeros.", start, end
        )


def _word_kind(word: str, start: int) -> str:
    if word in ("True", "False"):
        return "constant"
    if word in _WORDS:
        return "op"
    if keyword.iskeyword(word):
        raise ExpressionError(f"{word!r} is not part of the language.", start, start + len(word))
    return "name"


class _Shape:
    """Whether values and operators alternate, and brackets close."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._wants_value = True
        self._last: Token | None = None
        self._open: list[Token] = []
        self._in_list: list[bool] = []  # of each open bracket: may a comma stand in it
        self._prefixes = 0

    def add(self, token: Token) -> None:
        """Take the next token."""
        if self._wants_value:
            self._value(token)
        else:
            self._operator(token)
        self._last = token

    def finish(self, end: int) -> None:
        """Refuse what is not complete."""
        if self._wants_value:
            raise ExpressionError("expected a value, got the end of the expression.", end, end + 1)
        if self._open:
            opened = self._open[-1]
            raise ExpressionError(
                f"expected a closing bracket for this {opened.text!r}, got the end of the "
                "expression.",
                opened.start,
                opened.end,
            )

    def _value(self, token: Token) -> None:
        if token.kind != "op":
            self._wants_value, self._prefixes = False, 0
        elif token.text in _PREFIX:
            self._prefixes += 1
            if self._prefixes > MAX_NESTING:
                raise self._too_deep(token)
        elif token.text == "(":
            self._push(token, in_list=False)
        elif token.text == ")" and self._last and self._last.text == "(" and self._in_list[-1:]:
            raise self._empty(token)
        elif token.text == "[":
            raise ExpressionError(
                "expected a value, got a list. Lists are not part of the language.",
                token.start,
                token.end,
            )
        else:
            raise ExpressionError(f"expected a value, got {token.text!r}.", token.start, token.end)

    def _empty(self, token: Token) -> ExpressionError:
        what = "the function's arguments" if self._in_list[-1] else "a value"
        return ExpressionError(f"expected {what}, got '()'.", self._open[-1].start, token.end)

    def _operator(self, token: Token) -> None:
        last = self._last
        assert last is not None
        if token.text in ("(", "[") and last.kind == "name":
            if token.text == "(" and last.text not in FUNCTIONS:
                raise self._not_a_function(last)
            self._push(token, in_list=True)
        elif token.text in (")", "]"):
            self._pop(token)
        elif token.text == "," and self._in_list[-1:] == [True]:
            self._wants_value = True
        elif token.text == ",":
            raise ExpressionError(
                "expected one value, got a comma, which stands between arguments and indices "
                "alone.",
                token.start,
                token.end,
            )
        elif token.text in _BINARY:
            self._wants_value = True
        else:
            raise ExpressionError(
                f"expected an operator, got {token.text!r}.", token.start, token.end
            )

    def _push(self, token: Token, *, in_list: bool) -> None:
        if len(self._open) == MAX_NESTING:
            raise self._too_deep(token)
        self._open.append(token)
        self._in_list.append(in_list)
        self._wants_value, self._prefixes = True, 0

    def _pop(self, token: Token) -> None:
        pair = {")": "(", "]": "["}[token.text]
        if not self._open or self._open[-1].text != pair:
            raise ExpressionError(
                f"expected an operator, got {token.text!r} without its {pair!r}.",
                token.start,
                token.end,
            )
        self._open.pop()
        self._in_list.pop()

    def _too_deep(self, token: Token) -> ExpressionError:
        return ExpressionError(
            f"expected at most {MAX_NESTING} levels of nesting, got more. Split it by 'let:'.",
            token.start,
            token.end,
        )

    def _not_a_function(self, name: Token) -> ExpressionError:
        remedy = f"{nearest(name.text, FUNCTIONS)} Functions: {', '.join(FUNCTIONS)}."
        if name.text in self._names:
            remedy = f" Elements are read by {name.text}[...]."
        return ExpressionError(f"unknown function {name.text!r}.{remedy}", name.start, name.end)
