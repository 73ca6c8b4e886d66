"""The mask and the bias of a host's call -> the body of the variant that reads them.

Hosts describe masks by what they are made of (padding, documents) and biases by their shape. Which
of them are there is one program; no value of theirs is in it. Imports no torch, as `flashgen build`
finds the keys of these variants too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import get_args

from ..generator.body import Body, CaptureDtype
from ..generator.spec import load_specs
from .paths import integration_bodies

_MASKS = ("", "keep", "documents", "seen")
_BIASES = ("", "shared", "batched")


@dataclass(frozen=True, slots=True)
class BodyKind:
    """What of a call's mask and bias decides their program.

    Attributes:
        mask: "", or the name of the mask in bodies.yaml.
        bias: "", or the name of the score in bodies.yaml.
        bias_dtype: of the bias; fp32 without one.
        bias_grad: whether it needs its gradient.
        bias_hides: whether it is a mask of floats; then there is no other mask.
    """

    mask: str = ""
    bias: str = ""
    bias_dtype: CaptureDtype = "fp32"
    bias_grad: bool = False
    bias_hides: bool = False


@cache
def body_of(kind: BodyKind) -> Body | None:
    """The mask and the score of ``kind`` in one body; None where there is neither."""
    mask = _bodies()[kind.mask] if kind.mask else None
    bias = _bodies()[kind.bias] if kind.bias else None
    if bias is not None:
        (capture,) = bias.captures
        capture = replace(capture, dtype=kind.bias_dtype, grad=kind.bias_grad)
        bias = replace(bias, captures=(capture,), mask=bias.mask if kind.bias_hides else None)
    if mask is None or bias is None:
        return mask or bias
    captures = sorted((*mask.captures, *bias.captures), key=lambda capture: capture.name)
    return replace(mask, captures=tuple(captures), score=bias.score)


def all_kinds() -> Iterator[BodyKind]:
    """Every kind that has a body."""
    floats = [dtype for dtype in get_args(CaptureDtype) if dtype.startswith(("fp", "bf"))]
    for mask, bias in product(_MASKS, _BIASES):
        if bias:
            for dtype, grad, hides in product(floats, (False, True), (False, True)):
                if not (mask and hides):
                    yield BodyKind(mask, bias, dtype, grad, hides)
        elif mask:
            yield BodyKind(mask)


@cache
def _bodies() -> dict[str, Body]:
    """The bodies of bodies.yaml by name."""
    file = integration_bodies()
    found = {}
    for spec in load_specs(file.read_text("utf-8"), str(file)):
        (variant,) = spec.variants
        assert variant.body is not None
        found[spec.name] = variant.body
    return found
