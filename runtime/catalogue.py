"""Spec files -> Catalogue: the shipped specs and the user's, found by key, name or file.

Imports neither torch nor a compiler: `flashgen list` answers at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..generator.canonical import HASH_CHARS, canonical_text
from ..generator.errors import SpecError
from ..generator.spec import Spec, load_specs
from ..generator.variant import Variant, canonical_key, is_key, parse_key
from ..generator.yaml_source import decode
from . import bodies, knobs, paths
from .spec_index import SpecIndex, state_of


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One variant and the spec that stands for it."""

    variant: Variant
    spec: Spec

    @property
    def key(self) -> str:
        """The variant's key."""
        return self.variant.key


@dataclass(frozen=True)
class Catalogue:
    """Every variant of the specs at hand.

    Attributes:
        entries: one for each key, in the order of the files.
        specs: all specs, in the order read.

    Where several specs list one key, the last one read gives its passes, arch and tuning: a
    user's folder comes after the shipped specs, an argument's after FLASHGEN_SPECS, so that a
    spec of one's own takes the place of a shipped one. A spec's name still gives that spec.
    """

    specs: tuple[Spec, ...]

    @classmethod
    def load(cls, extra: Iterable[Path] = ()) -> Catalogue:
        """Read the shipped specs, then FLASHGEN_SPECS, then ``extra`` (folders or files).

        Folders are read recursively, ``*.yaml`` and ``*.yml``, in the order of their paths.

        Raises:
            SpecError: on the first spec that is wrong, or a folder that isn't there.
        """
        return cls(tuple(spec for file in _all_files(extra) for spec in read_spec_file(file)))

    @cached_property
    def entries(self) -> tuple[CatalogueEntry, ...]:
        """One entry for each key; the last spec that lists a key gives it."""
        by_key: dict[str, CatalogueEntry] = {}
        for spec in self.specs:
            for variant in spec.variants:
                entry = CatalogueEntry(variant, spec)
                _check_same(by_key.setdefault(entry.key, entry), entry)
                by_key[entry.key] = entry
        return tuple(by_key.values())

    def find(self, name: str) -> tuple[CatalogueEntry, ...]:
        """The entries that ``name`` stands for; never none.

        Args:
            name: a key; a spec's name; a spec file's path, with ``:NAME`` behind it for one of
                the specs in it. A key that no spec lists is parsed, and its entry's spec is an
                empty one; its end may be that of a mask of PyTorch's calls or of models. Keys come
                first, then names, then files.

        Raises:
            SpecError: when it is none of these; gives the nearest keys and names.
        """
        for entry in self.entries:
            if entry.key == name:
                return (entry,)
        named = tuple(
            CatalogueEntry(variant, spec)
            for spec in self.specs
            if spec.name == name
            for variant in spec.variants
        )
        if named:
            # names of two files that agree stand for both; a key in both is the later one's
            return tuple({entry.key: entry for entry in named}.values())
        if _looks_like_a_file(name):
            return _entries_of_file(name)
        return (self._parsed(name),)

    def find_one(self, name: str) -> CatalogueEntry:
        """The one entry that ``name`` stands for.

        Raises:
            SpecError: as `find`, or when it stands for several; lists their keys.
        """
        found = self.find(name)
        if len(found) > 1:
            raise SpecError(
                f"{name}: expected a name of one variant, got one of {len(found)}: "
                f"{', '.join(entry.key for entry in found)}. Use one of these keys."
            )
        return found[0]

    def _parsed(self, name: str) -> CatalogueEntry:
        try:
            return _parsed(name)
        except SpecError as error:
            raise SpecError(self._unknown(name, error)) from None

    def _with_other_bodies(self, name: str) -> str:
        """Of a key that ends in the hash of a body: those at hand that differ in it alone."""
        if not is_key(name) or name.count("-") < 2:
            return ""
        preset = name.rpartition("-")[0]
        others = [
            e.key for e in self.entries if e.variant.body and e.key[: -HASH_CHARS - 1] == preset
        ]
        return f" At hand: {', '.join(others[:5])}." if others else ""

    def _unknown(self, name: str, error: SpecError) -> str:
        """Why ``name`` is nothing, with what it may have meant."""
        if canonical_key(name) or (name[:1] == "d" and name[1:2].isdecimal()):
            # a key, with a mistake that parse_key explains
            return f"{error}{self._with_other_bodies(name)}"
        known = list(
            dict.fromkeys(
                [spec.name for spec in self.specs] + [entry.key for entry in self.entries]
            )
        )
        name = name if len(name) <= 100 else f"{name[:97]}..."
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`flashgen list` shows them."
        if "/" not in name:
            hint += " Folders of your own specs are named by --specs or FLASHGEN_SPECS."
        return (
            f"{name}: expected a key such as d128-bf16-causal, a spec's name or a YAML file, "
            f"got {name!r}. {hint}"
        )


def find_one(name: str, extra: Iterable[Path] = ()) -> CatalogueEntry:
    """`Catalogue.load(extra).find_one(name)`, reading only the files that may list ``name``.

    A name that these don't have is looked for in the specs of bundles.

    Raises:
        SpecError: as these two.
    """
    extra = tuple(extra)
    index = SpecIndex.read()
    specs: list[Spec] = []
    read = []
    for file in _all_files(extra):
        state = state_of(file)
        known = index.known(file, state)
        if known is not None and not known.lists(name):
            continue
        found = read_spec_file(file)
        specs += found
        if known is None:
            read.append((file, state, found))
    index.remember(read)
    try:
        return Catalogue(tuple(specs)).find_one(name)
    except SpecError:
        return _bundled(name) or Catalogue.load(extra).find_one(name)  # which says what is near


def find_for_load(name: str, extra: Iterable[Path] = ()) -> CatalogueEntry:
    """`find_one`, with an empty spec where that says all: of a key that no spec adds anything to.

    Then no file is read, which takes longer than all else that is done to find a kernel.

    Raises:
        SpecError: as `find_one`.
    """
    extra = tuple(extra)
    index = SpecIndex.read()
    last = None
    for file in _all_files(extra):
        known = index.known(file, state_of(file))
        if known is None:
            return find_one(name, extra)
        last = known if known.lists(name) else last
    if last is None or name not in last.plain:
        return find_one(name, extra)
    return _parsed(name)


def _parsed(key: str) -> CatalogueEntry:
    variant = bodies.variant_of(key) or parse_key(key)
    return CatalogueEntry(variant, Spec(variant.key, "<key>", 1, (variant,)))


def _bundled(name: str) -> CatalogueEntry | None:
    """The one entry of ``name`` among the specs of bundles, which count where no other does."""
    files = [file for folder in paths.prebuilt_specs() for file in _spec_files(folder)]
    try:
        specs = tuple(spec for file in files for spec in read_spec_file(file))
        return Catalogue(specs).find_one(name) if specs else None
    except SpecError:
        return None


def _check_same(one: CatalogueEntry, other: CatalogueEntry) -> None:
    """One key is one function: the eight digits of a body's hash could, in theory, be two's."""
    bodies = one.variant.body, other.variant.body
    if bodies[0] == bodies[1] or None in bodies:
        return
    first, second = (canonical_text(body) for body in bodies if body)
    if first != second:
        raise SpecError(
            f"{other.spec.where}: expected a mask and score whose hash is no other's, got that of "
            f"{one.spec.where} ({other.key}). Reorder the operands of a commutative operator."
        )


def read_spec_file(file: Path) -> tuple[Spec, ...]:
    """The specs of one file.

    Raises:
        SpecError: when it can't be read, or is wrong; starts with the file.
    """
    try:
        data = file.read_bytes()
    except IsADirectoryError:
        raise SpecError(f"{file}: expected a YAML file, got a directory.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{file}: expected a readable YAML file, got: {reason}.") from None
    return load_specs(decode(data, str(file)), str(file))


def _all_files(extra: Iterable[Path]) -> Iterable[Path]:
    """Every spec file at hand, once, in the order of reading."""
    places = (paths.shipped_specs(), *knobs.SPECS.get(), *extra)
    return dict.fromkeys(file for place in places for file in _spec_files(place))


def _spec_files(place: Path) -> Iterator[Path]:
    """The YAML files below a folder, sorted by path, or the file itself."""
    if place.is_dir():
        yield from _yaml_below(place)
    elif place.exists():
        yield place
    else:
        raise SpecError(
            f"{place}: expected a folder of specs, got none. "
            f"Check --specs and {knobs.SPECS.name}, or create it."
        )


def _yaml_below(folder: Path) -> Iterator[Path]:
    # scandir: rglob takes several times as long, on every load
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from _yaml_below(folder / entry.name)
        elif entry.name.endswith((".yaml", ".yml")) and entry.is_file():
            yield folder / entry.name


def _looks_like_a_file(name: str) -> bool:
    path, _, _ = _split_file(name)
    return path.suffix in (".yaml", ".yml") or "/" in name


def _split_file(name: str) -> tuple[Path, str, str]:
    """``path.yaml:NAME`` in its parts; a colon elsewhere belongs to the path."""
    head, colon, tail = name.rpartition(":")
    if colon and Path(head).suffix in (".yaml", ".yml") and "/" not in tail:
        return Path(head), colon, tail
    return Path(name), "", ""


def _entries_of_file(name: str) -> tuple[CatalogueEntry, ...]:
    path, colon, wanted = _split_file(name)
    specs = read_spec_file(path.expanduser())
    entries = {
        (spec.name, variant.key): CatalogueEntry(variant, spec)
        for spec in specs
        for variant in spec.variants
    }
    if not colon:
        return tuple({entry.key: entry for entry in entries.values()}.values())
    chosen = [e for (label, key), e in entries.items() if wanted in (label, key)]
    if not chosen:
        labels = list(dict.fromkeys(label for pair in entries for label in pair))
        near = difflib.get_close_matches(wanted, labels, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise SpecError(
            f"{name}: expected a name or key of that file ({', '.join(labels[:20])}), "
            f"got {wanted!r}.{hint}"
        )
    return tuple({entry.key: entry for entry in chosen}.values())
