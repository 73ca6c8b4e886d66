"""Pins that ship over a planner's first choice, each with its measurement.

`flashgen tune --write` rewrites the table; nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shipped:
    """One pass of one variant on one target.

    Attributes:
        key: of the variant.
        pass_name: "forward" or "backward".
        target: where the pins hold.
        family: whose plan they are over.
        pins: (field, value) of the plan.
        gain: time of the planner's own choice over that of the pins.
        gpu: where that was measured.
        date: when, ISO 8601.
    """

    key: str
    pass_name: str
    target: str
    family: str
    pins: tuple[tuple[str, int | str | bool], ...]
    gain: float
    gpu: str
    date: str


TABLE: tuple[Shipped, ...] = ()


def pins_of(
    key: str, pass_name: str, target: str, family: str
) -> tuple[tuple[str, int | str | bool], ...]:
    """The pins that ship for a plan; none where the planner's own choice does."""
    for row in TABLE:
        if (row.key, row.pass_name, row.target, row.family) == (key, pass_name, target, family):
            return row.pins
    return ()
