"""A spec's ``tuning:`` block -> Pins, each tried on the plans that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .arch import TARGETS, buildable_targets, parse_target
from .errors import PlanError, SpecError, TargetError
from .spec_fields import PassTuning
from .variant import PASSES, Variant
from .yaml_source import Document


@dataclass(frozen=True, slots=True)
class Pin:
    """One field of a plan that a spec sets, and where it was written."""

    target: str
    pass_name: str
    field: str
    value: bool | int | str
    line: int
    column: int


def read_pins(
    document: Document, tuning: Mapping[str, PassTuning], variants: Sequence[Variant]
) -> tuple[Pin, ...]:
    """The pins of a spec that stands for ``variants``, sorted by target, pass and field.

    Raises:
        SpecError: when a target is unknown or given twice, or a pin is none of the plan's or
            makes it illegal on that target; says where it was written.
    """
    pins: list[Pin] = []
    written: dict[str, str] = {}
    for spelling, passes in tuning.items():
        target = _target_name(document, spelling)
        if target in written:
            raise document.error(
                document.key_mark(("tuning", spelling)),
                f"tuning: {spelling!r} means {target}, as {written[target]!r} above does. "
                "Put their pins together.",
            )
        written[target] = spelling
        for pass_name in PASSES:
            found = _pins_of_pass(document, spelling, target, pass_name, passes)
            _try(document, found, variants)
            pins += found
    return tuple(sorted(pins, key=lambda pin: (pin.target, pin.pass_name, pin.field)))


def _target_name(document: Document, spelling: str) -> str:
    try:
        return parse_target(spelling).name
    except TargetError as error:
        message = str(error).removeprefix("target: ")
        mark = document.key_mark(("tuning", spelling))
        raise document.error(mark, f"tuning: {message}") from None


def _pins_of_pass(
    document: Document, spelling: str, target: str, pass_name: str, passes: PassTuning
) -> list[Pin]:
    pins = []
    for field, value in getattr(passes, pass_name).items():
        mark = document.key_mark(("tuning", spelling, pass_name, field))
        pins.append(Pin(target, pass_name, field, value, mark.line, mark.column))
    return pins


def _try(document: Document, pins: Sequence[Pin], variants: Sequence[Variant]) -> None:
    """Plan every variant with ``pins``, all of one target and pass: a bad one fails here."""
    if not pins or pins[0].target not in buildable_targets():
        return
    from .plan import plan  # here: without pins, listing specs needs no planner

    target, pass_name = TARGETS[pins[0].target], pins[0].pass_name
    values = {pin.field: pin.value for pin in pins}
    for variant in variants:
        if variant.dtype not in target.dtypes:
            continue
        try:
            plan(variant, pass_name, target, pins=values)
        except PlanError as error:
            raise _refused(document, pins, variant, str(error)) from None


def _refused(document: Document, pins: Sequence[Pin], variant: Variant, message: str) -> SpecError:
    """The error of a plan, at the pin that it names, else at the first."""
    named = [pin for pin in pins if f"got {pin.field!r}" in message or f" {pin.field}:" in message]
    pin = (named or list(pins))[0]
    place = f"{document.file}:{pin.line}:{pin.column}"
    message = message.removeprefix("tuning: ").removeprefix("plan: ")
    return SpecError(f"{place}: tuning of {variant.key}: {message}")
