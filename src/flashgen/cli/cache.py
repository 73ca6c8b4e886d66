"""`flashgen cache`: what the cache holds, and what can go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from ..generator.arch import Target, parse_target
from ..generator.errors import CacheError, TargetError
from ..runtime import cache_ops, paths
from .exits import CHECK_FAILED
from .options import json_option, print_json
from .tables import human_bytes, print_table

_AGE = re.compile(r"(\d+)\s*([dhm])")
_SECONDS = {"d": 86_400.0, "h": 3600.0, "m": 60.0}


@click.group("cache")
def command() -> None:
    """Look after the compiled kernels.

    They lie in $FLASHGEN_CACHE_DIR, else ~/.cache/flashgen, below a folder for each target. All
    of it can be deleted at any time: what is missing is built again.

    \b
    Example:
      flashgen cache gc --older-than 30d     remove leftovers, and kernels built long ago
    """


_place = click.argument(
    "place",
    required=False,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="[DIR]",
)


@command.command("ls")
@_place
@json_option
def list_entries(place: Path | None, as_json: bool) -> None:
    """List the kernels: key, pass, target, family, size, when built.

    Of the bundle DIR, or of the cache and then of each bundle in FLASHGEN_PREBUILT.
    """
    if as_json:
        print_json([_as_data(entry) for _, found in _places(place) for entry in found])
        return
    for root, found in _places(place):
        print_table(
            ("key", "pass", "target", "family", "size", "built"),
            [_as_row(entry) for entry in found],
            right="size",
        )
        click.echo(f"{len(found)} kernels in {root}")


def _places(place: Path | None) -> Iterator[tuple[Path, tuple[cache_ops.Entry, ...]]]:
    """Each place to list, with what it has; a bundle that doesn't fit is told of, and left out."""
    if place is not None:
        yield place, cache_ops.entries(place)
        return
    yield paths.cache_root(), cache_ops.entries(paths.cache_root())
    for root in paths.prebuilt_roots():
        try:
            yield root, cache_ops.entries(root)
        except CacheError as error:
            click.echo(f"note: {error}", err=True)


def _as_row(entry: cache_ops.Entry) -> tuple[str, ...]:
    manifest = entry.artifact.manifest
    return (
        manifest.key,
        manifest.pass_name,
        manifest.target,
        manifest.family,
        human_bytes(entry.size_bytes),
        manifest.built_at,
    )


def _as_data(entry: cache_ops.Entry) -> dict[str, object]:
    manifest = entry.artifact.manifest
    return {
        "key": manifest.key,
        "pass": manifest.pass_name,
        "target": manifest.target,
        "family": manifest.family,
        "size_bytes": entry.size_bytes,
        "built_at": manifest.built_at,
        "directory": str(entry.artifact.directory),
    }


@command.command("du")
@json_option
def disk_usage(as_json: bool) -> None:
    """Say what the cache takes on disk, by target."""
    usage = cache_ops.usage(paths.cache_root())
    if as_json:
        targets = {
            t.target: {"kernels": t.entries, "size_bytes": t.size_bytes} for t in usage.targets
        }
        print_json(
            {
                "directory": str(usage.root),
                "size_bytes": usage.size_bytes,
                "other_bytes": usage.other_bytes,
                "targets": targets,
            }
        )
        return
    rows = [(t.target, str(t.entries), human_bytes(t.size_bytes)) for t in usage.targets]
    rows += [
        ("other", "-", human_bytes(usage.other_bytes)),
        ("all", str(usage.entries), human_bytes(usage.size_bytes)),
    ]
    print_table(("target", "kernels", "size"), rows, right="kernels size")
    click.echo(f"in {usage.root}")


def _read_age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    match = None if value is None else _AGE.fullmatch(value.strip())
    if value is not None and match is None:
        raise click.BadParameter(f"expected an age such as 30d, 12h or 5m, got {value!r}.")
    return None if match is None else int(match[1]) * _SECONDS[match[2]]


@command.command("gc")
@click.option(
    "--older-than",
    "older_than_seconds",
    metavar="AGE",
    callback=_read_age,
    help="Also remove kernels built longer ago than this, such as 30d, 12h or 5m.",
)
def collect(older_than_seconds: float | None) -> None:
    """Remove what nothing can load.

    That is killed builds, replaced kernels and the leftovers of both.
    """
    _say(cache_ops.gc(paths.cache_root(), older_than_seconds=older_than_seconds))


def _read_target(ctx: click.Context, param: click.Parameter, value: str | None) -> Target | None:
    try:
        return None if value is None else parse_target(value)
    except TargetError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@command.command("rm")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--arch", "target", metavar="ARCH", callback=_read_target, help="Of this target only."
)
@click.option("--all", "everything", is_flag=True, help="Every kernel (of --arch, if given).")
def remove(keys: tuple[str, ...], target: Target | None, everything: bool) -> None:
    """Remove the kernels of KEY.

    A running program keeps what it has loaded.
    """
    if bool(keys) == everything:
        raise click.UsageError("name the KEYs to remove, or say --all.")
    root = paths.cache_root()
    present = {entry.artifact.manifest.key for entry in cache_ops.entries(root)}
    absent = sorted(set(keys) - present)
    if absent:
        raise click.UsageError(
            f"{root} has no kernel of {', '.join(absent)}; see flashgen cache ls."
        )
    for key in sorted(present) if everything else keys:
        _say(cache_ops.remove(root, key, target=target.name if target else None), key)


@command.command("verify")
@_place
@json_option
def check(place: Path | None, as_json: bool) -> None:
    """Check every file of the cache, or of the bundle DIR, against its checksum.

    Exits with 1 when one is damaged; the next load builds that kernel again.
    """
    root = place or paths.cache_root()
    faults = cache_ops.verify(root)
    if as_json:
        print_json(
            [
                {
                    "pointer": str(fault.pointer),
                    "directory": None if fault.directory is None else str(fault.directory),
                    "problem": fault.problem,
                }
                for fault in faults
            ]
        )
    else:
        for fault in faults:
            click.echo(f"error: {fault.directory or fault.pointer}: {fault.problem}", err=True)
        click.echo(f"{len(cache_ops.entries(root))} kernels in {root}, {len(faults)} faults")
    if faults:
        if not as_json and place is None:
            click.echo("The next load builds them again; flashgen cache gc removes them.", err=True)
        raise click.exceptions.Exit(CHECK_FAILED)


def _say(removed: cache_ops.Removed, what: str = "") -> None:
    prefix = f"{what}: " if what else ""
    click.echo(f"{prefix}removed {len(removed.paths)} paths, {human_bytes(removed.size_bytes)}")
