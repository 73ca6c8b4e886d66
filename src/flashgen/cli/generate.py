"""`flashgen generate`: rendered sources, without a compiler."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from ..generator.arch import Target
from ..generator.goldens import render_goldens
from ..generator.render import render
from ..runtime import paths
from ..runtime.catalogue import Catalogue
from .exits import CHECK_FAILED
from .options import arch_option, family_option, specs_option
from .selection import select_requests

REWRITE = "flashgen generate"


@click.command("generate")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@arch_option
@family_option
@specs_option
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the sources of KEY go, with the headers that they include.",
)
@click.option(
    "--check", is_flag=True, help="Write nothing; fail with a diff when generated/ is stale."
)
def command(
    keys: tuple[str, ...],
    arch: tuple[Target, ...],
    family: str | None,
    spec_dirs: tuple[Path, ...],
    output: Path | None,
    check: bool,
) -> None:
    """Write rendered sources; no compiler and no GPU is needed.

    Without KEY, in a checkout: rewrite generated/, the committed renderings. With KEY: write the
    sources of those variants to a folder, each ready to compile alone.

    \b
    Examples:
      flashgen generate --check                                   is generated/ true?
      flashgen generate d128-bf16-causal --arch sm80 -o attn/     a kernel to read or to fork
    """
    if not keys:
        if arch or family or output or spec_dirs:
            raise click.UsageError("--arch, --family, --specs and -o go with a KEY.")
        _goldens(check)
        return
    if check:
        raise click.UsageError("--check compares generated/ and takes no KEY.")
    if output is None:
        raise click.UsageError("a KEY needs -o DIR, the folder to write to.")
    catalogue = Catalogue.load(spec_dirs)
    for request in select_requests(catalogue, keys, arch, family):
        rendered = render(request.plan())
        for name, text in (*rendered.headers, (rendered.name, rendered.text)):
            _write(output / name, text)
        click.echo(output / rendered.name)


def _goldens(check: bool) -> None:
    folder = paths.generated_folder()
    wanted = dict(render_goldens())
    found = {path.name: path.read_text("utf-8") for path in folder.glob("*") if path.is_file()}
    if check:
        _compare(folder, found, wanted)
        return
    for name in found.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        if found.get(name) != text:
            _write(folder / name, text)
            click.echo(f"{folder.name}/{name}")
    click.echo(f"{folder.name}: {len(wanted)} files are true")


def _compare(folder: Path, found: dict[str, str], wanted: dict[str, str]) -> None:
    """Print a diff for each file that differs, then exit with CHECK_FAILED."""
    stale = sorted(
        name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
    )
    for name in stale:
        diff = difflib.unified_diff(
            found.get(name, "").splitlines(keepends=True),
            wanted.get(name, "").splitlines(keepends=True),
            f"{folder.name}/{name} (committed)" if name in found else "/dev/null",
            f"{folder.name}/{name} (rendered now)" if name in wanted else "/dev/null",
        )
        click.echo("".join(diff), nl=False)
    if stale:
        click.echo(
            f"error: {folder}: expected the renderings of this checkout, got {len(stale)} stale "
            f"of {len(wanted)} ({', '.join(stale)}). Read the diff, then run: {REWRITE}",
            err=True,
        )
        raise click.exceptions.Exit(CHECK_FAILED)
    click.echo(f"{folder.name}: {len(wanted)} files are true")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
