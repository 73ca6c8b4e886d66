"""What an expression may name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..body import Capture, Param
from ..ir.nodes import INDEX_NAMES, Const, Expr, Name, Named, Type


@dataclass(frozen=True, slots=True)
class Let:
    """An expression with a name, its type, and every name that it reads in turn."""

    expr: Named
    type: Type
    used: frozenset[str]


Entry: TypeAlias = Const | Name | Capture | Let


@dataclass(frozen=True, slots=True)
class Scope:
    """The names in scope of an expression, immutable.

    Attributes:
        entries: what each name stands for.
        refused: names that exist but may not be used here, and why.
    """

    entries: Mapping[str, Entry]
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        captures: Iterable[Capture] = (),
        params: Iterable[Param] = (),
        constants: Iterable[tuple[str, int | float | bool]] = (),
    ) -> Scope:
        """The scope of a score: positions, sizes, ``score``, and a spec's own names."""
        entries: dict[str, Entry] = {"score": Name("score", "float")}
        entries |= {name: Name(name) for name in INDEX_NAMES}
        entries |= {capture.name: capture for capture in captures}
        entries |= {param.name: Name(param.name, param.type) for param in params}
        entries |= {name: Const(value) for name, value in constants}
        return cls(entries)

    def with_let(self, name: str, expr: Expr, kind: Type, used: frozenset[str]) -> Scope:
        """This scope and one more let."""
        let = Let(Named(name, expr), kind, used)
        return Scope({**self.entries, name: let}, self.refused)

    def of_mask(self) -> Scope:
        """This scope without ``score`` and the lets that read it: a mask can't depend on it."""
        reason = "a mask says which keys a query sees before there is a score"
        refused = {"score": reason}
        for name, entry in self.entries.items():
            if isinstance(entry, Let) and "score" in entry.used:
                refused[name] = f"it reads 'score', and {reason}"
        entries = {name: e for name, e in self.entries.items() if name not in refused}
        return Scope(entries, refused)
