"""`flashgen build`: variants -> compiled kernels in the cache."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..generator.arch import Target
from ..generator.errors import FlashgenError
from ..runtime import paths
from ..runtime.artifact import Artifact
from ..runtime.build import build
from ..runtime.catalogue import Catalogue
from ..runtime.unit import BuildRequest
from .options import arch_option, family_option, jobs_option, json_option, print_json, specs_option
from .progress import BuildProgress
from .selection import select_requests
from .tables import print_table


@click.command("build")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@arch_option
@family_option
@jobs_option
@click.option("--force", is_flag=True, help="Compile even what the cache has.")
@click.option(
    "--strict/--no-strict",
    default=None,
    help="Fail when a kernel spills registers or ptxas says that it lost speed (default: for "
    "shipped specs only).",
)
@specs_option
@json_option
def command(
    keys: tuple[str, ...],
    arch: tuple[Target, ...],
    family: str | None,
    jobs: int | None,
    force: bool,
    strict: bool | None,
    spec_dirs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Compile variants into the cache; no GPU is needed, and what is cached is not built again.

    KEY is a key, a spec's name, "file.yaml" or "file.yaml:NAME". Without KEY: the whole
    catalogue, each variant for those --arch that its spec and dtype admit. Without --arch: the
    spec's arch, else this machine's target.

    \b
    Examples:
      flashgen build --arch cpu --arch sm80                the catalogue, for two targets
      flashgen build d80-bf16-causal --arch native         one variant, for this machine
      flashgen build --arch sm90 --family sm80             a later target from sm80's templates
    """
    start = time.monotonic()
    requests = select_requests(Catalogue.load(spec_dirs), keys, arch, family, strict, tuned=True)
    with BuildProgress(quiet=as_json) as progress:
        artifacts = _build(requests, jobs, force, progress)
    compiled = progress.directories
    if as_json:
        print_json([_as_data(artifact, artifact.directory in compiled) for artifact in artifacts])
        return
    print_table(
        ("key", "pass", "target", "family", "registers", "spills", "smem", "built"),
        [_as_row(artifact, artifact.directory in compiled) for artifact in artifacts],
        right="registers spills smem built",
    )
    click.echo(
        f"{len(artifacts)} kernels, {len(compiled)} compiled now in "
        f"{time.monotonic() - start:.1f} s, in {paths.cache_root()}"
    )


def _build(
    requests: list[BuildRequest], jobs: int | None, force: bool, progress: BuildProgress
) -> list[Artifact]:
    """`build`, which raises the first error of several; the others are printed before it."""
    try:
        return build(requests, jobs=jobs, force=force, progress=progress)
    except FlashgenError:
        if len(progress.errors) < 2:
            raise
        *others, last = progress.errors
        for error in others:
            click.echo(f"error: {error}", err=True)
        raise last from None


def _as_row(artifact: Artifact, compiled: bool) -> tuple[str, ...]:
    manifest, resources = artifact.manifest, artifact.resources
    on_gpu = bool(resources)
    return (
        manifest.key,
        manifest.pass_name,
        manifest.target,
        manifest.family,
        str(max(r.registers for r in resources)) if on_gpu else "-",
        str(sum(r.spill_store_bytes + r.spill_load_bytes for r in resources)) if on_gpu else "-",
        str(manifest.smem_bytes) if on_gpu else "-",
        f"{manifest.build_seconds:.1f} s" if compiled else "cached",
    )


def _as_data(artifact: Artifact, compiled: bool) -> dict[str, object]:
    manifest = artifact.manifest
    return {
        "key": manifest.key,
        "pass": manifest.pass_name,
        "target": manifest.target,
        "family": manifest.family,
        "directory": str(artifact.directory),
        "library": str(artifact.library),
        "source": str(artifact.source),
        "compiled": compiled,
        "build_seconds": manifest.build_seconds,
        "smem_bytes": manifest.smem_bytes,
        "resources": [
            {name: getattr(r, name) for name in r.__struct_fields__} for r in artifact.resources
        ],
        "warnings": list(manifest.warnings),
    }
