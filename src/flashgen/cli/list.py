"""`flashgen list`: what the specs stand for."""

from __future__ import annotations

from pathlib import Path

import click

from ..runtime.catalogue import Catalogue, CatalogueEntry
from .options import json_option, print_json, specs_option
from .tables import print_table


@click.command("list")
@specs_option
@json_option
def command(spec_dirs: tuple[Path, ...], as_json: bool) -> None:
    """List the variants that the specs stand for, one key a line.

    \b
    Example:
      flashgen list --specs my_specs      the shipped catalogue and your folder

    A key that no spec lists works too wherever a key is asked for, as long as it is made of
    presets: flashgen build d80-bf16-causal --arch sm80.
    """
    entries = Catalogue.load(spec_dirs).entries
    if as_json:
        print_json([_as_data(entry) for entry in entries])
        return
    rows = [
        (
            entry.variant.key,
            entry.spec.name or "-",
            " ".join(entry.spec.arch) or "any",
            " ".join(entry.spec.passes),
            entry.spec.where,
        )
        for entry in entries
    ]
    print_table(("key", "name", "arch", "passes", "spec"), rows)


def _as_data(entry: CatalogueEntry) -> dict[str, object]:
    return {
        "key": entry.variant.key,
        "name": entry.spec.name,
        "arch": list(entry.spec.arch),
        "passes": list(entry.spec.passes),
        "spec": entry.spec.where,
    }
