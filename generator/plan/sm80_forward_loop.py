"""How the loop of family sm80's forward copies and rescales: what an H200 found fastest.

docs/sm80.md has what each part gave (2026-12). A lazy maximum won everywhere, copies of short rows,
between products and two steps ahead where they fit. What is left out below spills with nvcc 13.0,
as many bytes as the comments say, or has been compiled and not timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arch import Target
from ..program import program_for
from ..variant import Variant


@dataclass(frozen=True, slots=True)
class _Case:
    """What of a variant and a target decides.

    Attributes:
        columns: of the wider of Q and V.
        whole: whether both are multiples of 64 columns.
        scores: whether elements have a score of their own.
        bounded: whether a band of diagonals has a first key.
        tests: whether tiles are tested.
        captures: whether that reads captures.
        shared: whether several warps share queries.
        before: the target is older than sm90.
        hopper: it is sm90.
    """

    columns: int
    whole: bool
    causal: bool
    dropout: bool
    varlen: bool
    scores: bool
    bounded: bool
    tests: bool
    captures: bool
    shared: bool
    before: bool
    hopper: bool

    @property
    def later(self) -> bool:
        """The target is newer than sm90."""
        return not (self.before or self.hopper)

    @property
    def middling(self) -> bool:
        """65 to 128 columns."""
        return 64 < self.columns <= 128


def loop_fields(variant: Variant, target: Target, key_splits: int) -> dict[str, Any]:
    """Fields of a `Sm80ForwardPlan` by name: num_stages, paced, short_rows, rescale."""
    case = _case(variant, target, key_splits)
    short_rows = _has_short_rows(case)
    paced = short_rows and _is_paced(case)
    # two stages take 96 KiB at d128, of which sm90 has room for two thread blocks
    staged = paced and case.hopper and case.middling and not case.dropout
    if staged and case.bounded and not case.causal:
        paced = False  # 48 bytes where both ends of the window are constants
    return {
        "num_stages": 2 if staged else 1,
        "paced": paced,
        "short_rows": short_rows,
        "rescale": "rows" if _rescales_by_row(case, staged, paced) else "seldom",
    }


def _case(variant: Variant, target: Target, key_splits: int) -> _Case:
    program = program_for(variant)
    tests = program.tile_test is not None
    return _Case(
        columns=max(variant.head_dim, variant.head_dim_v),
        whole=variant.head_dim % 64 == variant.head_dim_v % 64 == 0,
        causal=bool(variant.causal),
        dropout=variant.dropout > 0,
        varlen=variant.layout == "varlen",
        scores=program.score is not None,
        bounded=program.band.lower is not None,
        tests=tests,
        captures=tests and bool(program.captures),
        shared=key_splits > 1,
        before=target.capability < (9, 0),
        hopper=target.capability == (9, 0),
    )


def _has_short_rows(case: _Case) -> bool:
    if not case.whole or (case.later and case.columns <= 128):
        return False  # other copies spill on later targets
    if not (case.tests or case.bounded):
        return True
    if not case.hopper or case.columns > 128 or case.scores or case.dropout:
        return False  # not timed
    # up to 56 bytes
    return not (case.tests and case.columns > 64) or not (
        case.varlen or (case.causal and not case.captures)
    )


def _is_paced(case: _Case) -> bool:
    """Of loops with short rows."""
    if case.scores or case.shared:
        return False
    if case.columns <= 64:
        return (case.causal or case.dropout) and not case.bounded  # 20 bytes
    if case.columns > 128:
        return not (case.later and case.varlen)  # row statistics in shared memory
    return not case.dropout or (case.before and case.columns > 96 and not case.causal)


def _rescales_by_row(case: _Case, staged: bool, paced: bool) -> bool:
    """Whether lazy maxima spill."""
    if case.later:
        return case.dropout and case.middling
    if case.hopper:
        return staged and case.captures  # 40 bytes
    unmasked = not case.causal or case.captures
    return case.columns > 96 and not paced and (unmasked or (case.columns > 128 and case.dropout))
