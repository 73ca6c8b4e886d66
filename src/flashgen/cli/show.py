"""`flashgen show`: everything that is known of a variant, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import click

from ..generator.arch import Target
from ..generator.body import Body
from ..generator.canonical import canonical_text
from ..generator.errors import CacheError
from ..generator.plan import KernelPlan
from ..runtime.artifact import Artifact
from ..runtime.build import find
from ..runtime.catalogue import Catalogue, CatalogueEntry
from ..runtime.unit import BuildRequest, Unit, prepare
from .options import arch_option, family_option, json_option, print_json, specs_option
from .selection import select_requests
from .tables import format_table

LABEL_CELLS = 12
_SHOWN_WHERE_SET = ("layout", "window", "softcap", "alibi", "sink", "block_mask")
_SHOWN_APART = (
    "key", "target", "family", "pass_name", "smem", "smem_bytes", "registers_estimate", "segments"
)  # fmt: skip


@click.command("show")
@click.argument("key")
@arch_option
@family_option
@click.option("--source", is_flag=True, help="Print the rendered source and nothing else.")
@specs_option
@json_option
def command(
    key: str,
    arch: tuple[Target, ...],
    family: str | None,
    source: bool,
    spec_dirs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Explain one variant: its spec, the plan of each pass, and what the compiler made of it.

    The plan says which family's templates serve the target and why, the tiles, the map of shared
    memory, and the compiler's flags. Where the cache has the kernel, its registers and spills
    follow. Nothing is compiled.

    \b
    Examples:
      flashgen show d128-bf16-causal --arch sm80              plan and resources
      flashgen show d128-bf16-causal --arch sm80 --source     the CUDA of both passes
    """
    catalogue = Catalogue.load(spec_dirs)
    entries = {entry.key: entry for entry in catalogue.find(key)}
    requests = select_requests(catalogue, (key,), arch, family, tuned=True)
    units = [prepare(request) for request in requests]
    if as_json:
        print_json([_as_data(entries[unit.request.variant.key], unit) for unit in units])
    elif source:
        click.echo("\n".join(unit.rendered.text for unit in units), nl=False)
    else:
        click.echo("\n".join(_lines(entries, units)))


def _lines(entries: dict[str, CatalogueEntry], units: list[Unit]) -> Iterator[str]:
    shown = ""
    for unit in units:
        if unit.request.variant.key != shown:
            shown = unit.request.variant.key
            yield from _spec_lines(entries[shown])
        yield ""
        yield f"{unit.request.pass_name} on {unit.request.target.name}"
        yield from _plan_lines(unit.plan)
        if unit.request.pins:
            pins = ", ".join(f"{name} {value}" for name, value in unit.request.pins)
            yield _line("pins", f"{pins} (the spec's tuning, or `flashgen tune`)")
        yield _line("flags", " ".join(unit.flags))
        yield from _artifact_lines(unit.request)


def _line(label: str, text: object) -> str:
    return f"  {label:{LABEL_CELLS}s}  {text}"


def _spec_lines(entry: CatalogueEntry) -> Iterator[str]:
    yield entry.key
    listed = entry.spec.path != "<key>"
    yield _line("spec", f"{entry.spec.name} ({entry.spec.where})" if listed else "none lists it")
    for field in fields(entry.variant):
        value = getattr(entry.variant, field.name)
        if field.name == "body" or (field.name in _SHOWN_WHERE_SET and value == field.default):
            continue
        yield _line(field.name, str(value).lower() if isinstance(value, bool) else value)
    if entry.variant.body is not None:
        yield from _body_lines(entry.variant.body, entry.key)


def _body_lines(body: Body, key: str) -> Iterator[str]:
    for capture in body.captures:
        dims = ", ".join(map(str, capture.dims))
        grad = ", with a gradient" if capture.grad else ""
        yield _line("capture", f"{capture.name} ({dims}) {capture.dtype}{grad}")
    for param in body.params:
        yield _line("param", f"{param.name} {param.type}")
    own = [name for name in ("mask", "score") if getattr(body, name) is not None]
    yield _line("own", f"{' and '.join(own)}; flashgen explain {key} prints them")


def _plan_lines(plan: KernelPlan) -> Iterator[str]:
    yield _line("family", f"{plan.family}: {plan.reason}")
    yield _line("template", plan.template)
    described = plan.describe()
    for name, value in described.items():
        if name not in _SHOWN_APART:
            text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            yield _line(name, text)
    for index, segment in enumerate(plan.segments):
        yield _line("" if index else "segments", segment)
    if plan.target.is_cpu:
        return
    yield _line("registers", f"{plan.registers_estimate} estimated of {plan.target.max_registers}")
    yield _line("smem", f"{plan.smem_bytes} of {plan.target.max_smem_bytes} bytes")
    rows = [
        (str(b.offset_bytes), str(b.size_bytes), b.name, b.purpose)
        for b in sorted(plan.smem, key=lambda b: b.offset_bytes)
    ]
    yield from _indented(format_table(("offset", "bytes", "buffer", "for"), rows, "offset bytes"))


def _artifact_lines(request: BuildRequest) -> Iterator[str]:
    artifact = _artifact(request)
    if artifact is None:
        yield _line(
            "built", f"no; flashgen build {request.variant.key} --arch {request.target.name}"
        )
        return
    manifest = artifact.manifest
    compilers = ", ".join(f"{c.name} {c.version}" for c in manifest.compilers)
    yield _line("built", f"{manifest.built_at} in {manifest.build_seconds:.1f} s by {compilers}")
    yield _line("library", artifact.library)
    yield _line("source", artifact.source)
    rows = [
        (
            r.kernel,
            str(r.registers),
            str(r.spill_store_bytes + r.spill_load_bytes),
            str(r.stack_bytes),
            str(r.smem_bytes),
        )
        for r in artifact.resources
    ]
    if rows:
        header = ("kernel", "registers", "spills", "stack", "static")
        yield from _indented(format_table(header, rows, "registers spills stack static"))
    for warning in manifest.warnings:
        yield _line("warning", warning)


def _indented(table: str) -> Iterator[str]:
    for line in table.splitlines():
        yield " " * (LABEL_CELLS + 4) + line


def _artifact(request: BuildRequest) -> Artifact | None:
    try:
        return find(request)
    except CacheError:  # no cache directory can be named: then nothing is built
        return None


def _as_data(entry: CatalogueEntry, unit: Unit) -> dict[str, Any]:
    artifact = _artifact(unit.request)
    body = entry.variant.body
    return {
        "key": entry.key,
        "variant": asdict(replace(entry.variant, body=None))
        | {"body": None if body is None else canonical_text(body)},
        "spec": {"name": entry.spec.name, "where": entry.spec.where},
        "pass": unit.request.pass_name,
        "target": unit.request.target.name,
        "family": unit.plan.family,
        "reason": unit.plan.reason,
        "plan": unit.plan.describe(),
        "flags": list(unit.flags),
        "source_name": unit.rendered.name,
        "source": unit.rendered.text,
        "headers": [name for name, _ in unit.rendered.headers],
        "artifact": None
        if artifact is None
        else {
            "directory": str(artifact.directory),
            "library": str(artifact.library),
            "build_seconds": artifact.manifest.build_seconds,
            "resources": [
                {name: getattr(r, name) for name in r.__struct_fields__} for r in artifact.resources
            ],
            "warnings": list(artifact.manifest.warnings),
        },
    }
