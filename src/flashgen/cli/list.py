"""`flashgen list`: what the specs stand for."""

from __future__ import annotations

from pathlib import Path

import click

from ..generator.spec import Spec
from ..runtime import paths
from ..runtime.catalogue import Catalogue, CatalogueEntry
from .options import json_option, print_json, specs_option
from .tables import format_table


@click.command("list")
@specs_option
@json_option
def command(spec_dirs: tuple[Path, ...], as_json: bool) -> None:
    """List the variants that the specs stand for, one key a line, grouped by the specs' folder.

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
            _where(entry.spec),
        )
        for entry in entries
    ]
    groups = {entry.spec.path: group_of(entry.spec) for entry in entries}
    header, *lines = format_table(("key", "name", "arch", "passes", "spec"), rows).splitlines()
    click.echo(header)
    shown = ""
    for entry, line in zip(entries, lines, strict=True):
        group = groups[entry.spec.path]
        if group != shown:
            click.echo(f"\n{group}")
            shown = group
        click.echo(line)


def group_of(spec: Spec) -> str:
    """The folder of the spec's file: below the shipped specs where it is one, else in full."""
    folder = Path(spec.path).parent
    if folder.is_relative_to(paths.shipped_specs()):
        folder = folder.relative_to(paths.shipped_specs())
    return folder.as_posix()


def _where(spec: Spec) -> str:
    """``path:line``, shorter for a shipped spec: its folder is the group's."""
    shipped = Path(spec.path).is_relative_to(paths.shipped_specs())
    return f"{Path(spec.path).name}:{spec.line}" if shipped else spec.where


def _as_data(entry: CatalogueEntry) -> dict[str, object]:
    return {
        "key": entry.variant.key,
        "name": entry.spec.name,
        "group": group_of(entry.spec),
        "arch": list(entry.spec.arch),
        "passes": list(entry.spec.passes),
        "spec": entry.spec.where,
    }
