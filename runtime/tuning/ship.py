"""Tunings -> the shipped table, generator/plan/shipped.py, in a checkout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...generator.plan.shipped import TABLE, Shipped
from .. import paths
from ..atomic import write_atomic
from .store import Tuning

_START = "TABLE: tuple[Shipped, ...] = ("
_TABLE = re.compile(re.escape(_START) + r"(?:\n.*?\n)?\)\n", re.DOTALL)


def write_table(tunings: Sequence[Tuning]) -> Path:
    """Put the winners of ``tunings`` in the shipped table; gives its path.

    One whose winner is what ships already changes nothing.

    Raises:
        FlashgenError: outside a checkout.
    """
    path = paths.generated_folder().parent / "generator" / "plan" / "shipped.py"
    rows = {_place(row): row for row in TABLE}
    for tuning in tunings:
        if tuning.winner:
            row = shipped_of(tuning)
            rows[_place(row)] = row
    write_atomic(path, table_text(path.read_text("utf-8"), list(rows.values())).encode())
    return path


def shipped_of(tuning: Tuning) -> Shipped:
    """The row of a finished tuning."""
    assert tuning.winner is not None
    return Shipped(
        tuning.key,
        tuning.pass_name,
        tuning.target,
        tuning.family,
        tuning.trials[tuning.winner].pins,
        round(tuning.gain, 3),
        tuning.device,
        tuning.date[:10],
    )


def table_text(module: str, rows: Sequence[Shipped]) -> str:
    """``module``, the source of shipped.py, with ``rows`` as its table, sorted by place."""
    body = "".join(_row_text(row) for row in sorted(rows, key=_place))
    table = f"{_START}\n{body})\n" if body else f"{_START})\n"
    return _TABLE.sub(lambda _: table, module, count=1)


def _place(row: Shipped) -> tuple[str, str, str, str]:
    return row.key, row.pass_name, row.target, row.family


def _row_text(row: Shipped) -> str:
    """A row as ruff would lay it out."""
    pins = "".join(f"            ({_quoted(name)}, {_quoted(pin)}),\n" for name, pin in row.pins)
    measured = (repr(row.gain), _quoted(row.gpu), _quoted(row.date))
    values = (*map(_quoted, _place(row)), f"(\n{pins}        )", *measured)
    return "    Shipped(\n" + "".join(f"        {value},\n" for value in values) + "    ),\n"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
