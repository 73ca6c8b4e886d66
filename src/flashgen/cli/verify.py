"""`flashgen verify`: kernels on this machine against an fp64 reference."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from ..runtime.catalogue import Catalogue
from .exits import CHECK_FAILED
from .options import json_option, print_json, specs_option
from .selection import select_entries
from .tables import print_table


@click.command("verify")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--device", metavar="DEVICE", help="Where to run, such as cpu or cuda:1.")
@specs_option
@json_option
def command(
    keys: tuple[str, ...], device: str | None, spec_dirs: tuple[Path, ...], as_json: bool
) -> None:
    """Run kernels on random data and compare with an fp64 reference.

    Each variant of the catalogue, or each KEY, is loaded by key (and built if it isn't yet) for
    this machine's best target: the GPU if there is one, else cpu. Its error may be twice that
    of plain PyTorch operations in the same dtype, plus the rounding of the result. Exits with 1
    when a kernel's isn't within that.

    \b
    Examples:
      flashgen verify                          the catalogue
      flashgen verify d64-fp16-causal          one variant, whether a spec lists it or not
    """
    start = time.monotonic()
    entries = select_entries(Catalogue.load(spec_dirs), keys)
    from ..runtime.verify import verify  # here, so that --help and a wrong KEY answer at once

    rows = verify(entries, device, progress=_Progress(len(entries)))
    failed = [row for row in rows if not row.ok]
    if as_json:
        print_json([{name: getattr(row, name) for name in row.__slots__} for row in rows])
    else:
        print_table(
            ("key", "target", "pass", "of", "max error", "bound", "ok"),
            [
                (
                    row.key,
                    row.target,
                    row.pass_name,
                    row.quantity,
                    f"{row.max_error:.2e}",
                    f"{row.bound:.2e}",
                    "ok" if row.ok else "FAILED",
                )
                for row in rows
            ],
        )
        what = "variant" if len(entries) == 1 else "variants"
        click.echo(
            f"{len(entries)} {what}, {len(rows) - len(failed)} of {len(rows)} results within "
            f"their bound, {time.monotonic() - start:.1f} s"
        )
    for row in failed:
        click.echo(
            f"error: {row.key} {row.pass_name} {row.target}: {row.quantity}: {row.detail}", err=True
        )
    if failed:
        raise click.exceptions.Exit(CHECK_FAILED)


class _Progress:
    """One living line on a terminal; nothing elsewhere, where the table says it all."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._live = sys.stderr.isatty()

    def __call__(self, key: str) -> None:
        self._done += 1
        if self._live:
            last = self._done == self._total
            text = "" if last else f"{self._done}/{self._total}  {key}"
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)
