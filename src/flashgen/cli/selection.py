"""Keys, names and files, with targets -> build requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..generator.arch import NATIVE, Target, parse_target
from ..generator.errors import SpecError
from ..runtime import paths
from ..runtime.catalogue import Catalogue, CatalogueEntry
from ..runtime.tuning.store import pins_here
from ..runtime.unit import BuildRequest
from .options import native_targets


def select_entries(catalogue: Catalogue, names: Sequence[str]) -> tuple[CatalogueEntry, ...]:
    """The entries that ``names`` stand for, without repeats; the whole catalogue without names.

    Raises:
        SpecError: when a name is neither a key, a spec's name nor a file.
    """
    if not names:
        return catalogue.entries
    return tuple(dict.fromkeys(entry for name in names for entry in catalogue.find(name)))


def select_requests(
    catalogue: Catalogue,
    names: Sequence[str],
    targets: Sequence[Target],
    family: str | None = None,
    strict: bool | None = None,
    tuned: bool = False,
) -> list[BuildRequest]:
    """What to build for ``names`` on ``targets``, without repeats.

    A name that is given is built for every target that is given: a spec's ``arch`` says what is
    built by default and restricts nothing. Without names, each variant of the catalogue is built
    for those of ``targets`` that its spec's ``arch`` lists and its dtype runs on. Without
    targets, the spec's own count, or else this machine's.

    Args:
        catalogue: all specs.
        names: keys, names of specs or files.
        targets: what to build for.
        family: whose templates.
        strict: whether lost speed fails the build; by default it does for shipped specs.
        tuned: take what `flashgen tune` has found for this machine, as `load` does.

    Raises:
        SpecError: when that leaves nothing to build.
    """
    requests: list[BuildRequest] = []
    for entry in select_entries(catalogue, names):
        for target in _targets(entry, targets, named=bool(names)):
            requests += [
                BuildRequest(
                    entry.variant,
                    pass_name,
                    target,
                    family,
                    entry.spec.pins_for(target.name, pass_name)
                    or (pins_here(entry.variant, pass_name, target, family) if tuned else ()),
                    is_shipped(entry) if strict is None else strict,
                )
                for pass_name in entry.spec.passes
            ]
    if not requests:
        wanted = ", ".join(target.name for target in targets) or "this machine's target"
        raise SpecError(
            f"build: expected a variant whose spec's arch and dtype admit {wanted}, got none. "
            "Name the KEYs to build them whatever their arch says."
        )
    return list(dict.fromkeys(requests))


def is_shipped(entry: CatalogueEntry) -> bool:
    """Whether the entry is of a spec that comes with flashgen."""
    return Path(entry.spec.path).is_relative_to(paths.shipped_specs())


def _targets(entry: CatalogueEntry, wanted: Sequence[Target], named: bool) -> Sequence[Target]:
    listed = [
        target
        for name in entry.spec.arch
        for target in (native_targets() if name == NATIVE else (parse_target(name),))
    ]
    if named:
        return wanted or listed or native_targets()
    return [
        target
        for target in wanted or listed or native_targets()
        if (target in listed or not listed) and entry.variant.dtype in target.dtypes
    ]
