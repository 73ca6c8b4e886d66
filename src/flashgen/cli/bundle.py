"""`flashgen bundle`: compiled kernels -> a folder for machines without a compiler."""

from __future__ import annotations

from pathlib import Path

import click

from ..generator.arch import Target
from ..runtime import knobs
from ..runtime.build import build
from ..runtime.bundling import Packed, write_bundle
from ..runtime.catalogue import Catalogue
from .options import arch_option, family_option, jobs_option, specs_option
from .progress import BuildProgress
from .selection import is_shipped, select_entries, select_requests


@click.command("bundle")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@arch_option
@family_option
@jobs_option
@specs_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The bundle: a new folder, or a bundle that the kernels are added to.",
)
def command(
    keys: tuple[str, ...],
    arch: tuple[Target, ...],
    family: str | None,
    jobs: int | None,
    spec_dirs: tuple[Path, ...],
    output: Path,
) -> None:
    """Put compiled kernels into a folder for machines that have no compiler.

    There, with the same version of flashgen, FLASHGEN_PREBUILT=DIR makes flashgen.load find them.
    DIR may be copied or moved as a whole, and holds the specs that its kernels come from. KEY and
    --arch are those of flashgen build, which compiles what the cache lacks.

    \b
    Examples:
      flashgen bundle d128-bf16-causal --arch sm80 --arch sm90 -o kernels/
      flashgen bundle --specs my_specs mine --arch cpu -o kernels/       added to the same bundle
      flashgen cache ls kernels/                                         what it has
    """
    catalogue = Catalogue.load(spec_dirs)
    requests = select_requests(catalogue, keys, arch, family, tuned=True)
    with BuildProgress(quiet=False) as progress:
        artifacts = build(requests, jobs=jobs, progress=progress)
    kernels = [
        Packed(request, artifact) for request, artifact in zip(requests, artifacts, strict=True)
    ]
    entries = select_entries(catalogue, keys)
    files = dict.fromkeys(
        Path(entry.spec.path)
        for entry in entries
        if Path(entry.spec.path).is_file() and not is_shipped(entry)
    )
    bundle = write_bundle(output, kernels, tuple(files))
    targets = dict.fromkeys(entry.target for entry in bundle.entries)
    click.echo(
        f"{output}: {len(bundle.entries)} kernels for {', '.join(targets)}. "
        f"Load them with {knobs.PREBUILT.name}={output}"
    )
