"""Rows -> aligned text."""

from __future__ import annotations

from collections.abc import Sequence

import click


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """``rows`` under ``header``, columns two spaces apart.

    Args:
        header: the column titles.
        rows: one string a column.
        right: the titles of the columns to align right, separated by spaces.
    """
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    to_right = [title in right.split() for title in header]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, to_right, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in table)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print `format_table`'s text."""
    click.echo(format_table(header, rows, right))


def human_bytes(count: int) -> str:
    """``count`` bytes in the largest binary unit that keeps it at 1 or more: ``1.5 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
