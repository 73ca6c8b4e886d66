"""`flashgen export`: a variant -> one source file and a C header, for programs without Python."""

from __future__ import annotations

from pathlib import Path

import click

from ..generator.arch import Target
from ..generator.export import export
from ..runtime.catalogue import Catalogue
from .options import arch_option, family_option, specs_option
from .selection import select_requests


@click.command("export")
@click.argument("key", metavar="KEY")
@arch_option
@family_option
@specs_option
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="What files and functions are called (default: from key and target).",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder that the two files go to.",
)
def command(
    key: str,
    arch: tuple[Target, ...],
    family: str | None,
    spec_dirs: tuple[Path, ...],
    name: str,
    output: Path,
) -> None:
    """Write a kernel as one source file with a C header: no Python, no flashgen, no torch.

    The source, .cu or .cpp for the target cpu, holds forward and backward and all that they need.
    The header declares plain C functions, with the spec's captures and params by name, and says
    what they take. The source's first lines say how to compile it.

    \b
    Examples:
      flashgen export d128-bf16-causal --arch sm80 -o attn/
      flashgen export documents.yaml --arch cpu --name documents -o attn/
    """
    requests = select_requests(Catalogue.load(spec_dirs), (key,), arch, family, tuned=True)
    kinds = dict.fromkeys((request.variant.key, request.target.name) for request in requests)
    if len(kinds) > 1:
        raise click.UsageError(
            f"{key}: expected one variant and one target, got "
            f"{', '.join(' for '.join(kind) for kind in kinds)}. Name one key and one --arch."
        )
    exported = export([request.plan() for request in requests], name)
    output.mkdir(parents=True, exist_ok=True)
    for file, text in (
        (exported.header_name, exported.header),
        (exported.source_name, exported.source),
    ):
        (output / file).write_text(text, "utf-8")
        click.echo(output / file)
