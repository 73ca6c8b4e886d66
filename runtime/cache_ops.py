"""Cache or bundle -> its entries, sizes and faults; and what can be removed from a cache."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..generator.arch import TARGETS
from .artifact import Artifact, file_fault, read_artifact, read_pointer
from .atomic import TEMPORARY_SUFFIX
from .bundle import BUNDLE_NAME, is_bundle, read_bundle
from .cache import (
    BATCHES,
    LOCKS,
    POINTERS,
    SERVICE_DIRECTORIES,
    writing,
)
from .manifest import Pointer

IN_USE_SECONDS = 3600.0  # a directory without a pointer may be a build that still runs


@dataclass(frozen=True, slots=True)
class Entry:
    """One binary that the cache serves.

    Attributes:
        artifact: the binary.
        pointer: the file that makes a lookup find it: of its own, or the bundle's.
        size_bytes: of all its files.
    """

    artifact: Artifact
    pointer: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TargetUsage:
    """The share of one target: how many binaries, and their bytes with leftovers."""

    target: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the cache takes on disk.

    Attributes:
        root: its directory.
        targets: the share of each target that has any.
        other_bytes: pointers, compiled templates, locks and leftovers of ninja.
    """

    root: Path
    targets: tuple[TargetUsage, ...]
    other_bytes: int

    @property
    def entries(self) -> int:
        """Binaries in the cache."""
        return sum(t.entries for t in self.targets)

    @property
    def size_bytes(self) -> int:
        """Bytes of everything below the directory."""
        return self.other_bytes + sum(t.size_bytes for t in self.targets)


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal took away: paths, and their bytes together."""

    paths: tuple[Path, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with an entry; the next load builds it anew.

    Attributes:
        pointer: the entry's pointer.
        directory: where it should be; None where the pointer can't be read.
        problem: what is wrong, one phrase.
    """

    pointer: Path
    directory: Path | None
    problem: str


def entries(root: Path) -> tuple[Entry, ...]:
    """Every binary that the cache or bundle at ``root`` serves, by target, key and pass.

    Raises:
        CacheError: when it is a bundle that doesn't fit this machine and flashgen.
    """
    found = []
    for path, pointer in _served(root):
        artifact = None if pointer is None else read_artifact(root, pointer)
        if artifact is not None:
            found.append(Entry(artifact, path, _size(artifact.directory)))
    return tuple(sorted(found, key=_order))


def usage(root: Path) -> Usage:
    """What the cache at ``root`` takes on disk."""
    served: dict[str, int] = {}
    for entry in entries(root):
        target = entry.artifact.manifest.target
        served[target] = served.get(target, 0) + 1
    targets = tuple(
        TargetUsage(name, served.get(name, 0), _size(root / name))
        for name in TARGETS
        if (root / name).is_dir()
    )
    return Usage(root, targets, sum(_size(root / name) for name in SERVICE_DIRECTORIES))


def gc(root: Path, *, older_than_seconds: float | None = None) -> Removed:
    """Remove what no lookup can find, and on request what was built long ago.

    Directories of builds that failed or were killed, replaced binaries, dead pointers, leftovers
    of ninja and old locks go, unless they were written within the last hour.

    Args:
        root: the cache's directory.
        older_than_seconds: also remove binaries that were built longer ago than this.

    Raises:
        CacheError: when the cache can't be written.
    """
    kept: set[Path] = set()
    doomed: list[Path] = []
    dropped: set[Path] = set()
    for path in _pointers(root):
        artifact = _artifact(root, path)
        if artifact is None:
            doomed.append(path)
        elif older_than_seconds is not None and _age(artifact.directory) > older_than_seconds:
            doomed.append(path)
            dropped.add(artifact.directory)
        else:
            kept.add(artifact.directory)
    doomed += [
        directory
        for directory in _build_directories(root)
        if directory not in kept and (directory in dropped or _age(directory) > IN_USE_SECONDS)
    ]
    doomed += [path for path in _leftovers(root) if _age(path) > IN_USE_SECONDS]
    return _remove(root, doomed)


def remove(root: Path, key: str, *, target: str | None = None) -> Removed:
    """Remove every binary of the variant ``key``, or those of one ``target``.

    Raises:
        CacheError: when the cache can't be written.
    """
    doomed: list[Path] = []
    for entry in entries(root):
        manifest = entry.artifact.manifest
        if manifest.key == key and target in (None, manifest.target):
            doomed += [entry.pointer, entry.artifact.directory]
    return _remove(root, doomed)


def verify(root: Path) -> tuple[Fault, ...]:
    """Check every file of every entry against its checksum; the faults, none when all is well.

    Raises:
        CacheError: when ``root`` is a bundle that doesn't fit this machine and flashgen.
    """
    faults: list[Fault] = []
    for path, pointer in _served(root):
        if pointer is None:
            faults.append(Fault(path, None, "the pointer can't be read"))
            continue
        directory = root / pointer.directory
        artifact = read_artifact(root, pointer)
        if artifact is None:
            faults.append(Fault(path, directory, "the manifest is missing or altered"))
            continue
        problems = (file_fault(artifact, record.path) for record in artifact.manifest.files)
        faults += [Fault(path, directory, problem) for problem in problems if problem]
    return tuple(faults)


def _served(root: Path) -> list[tuple[Path, Pointer | None]]:
    """What a lookup reads: each file that names a directory, and the pointer in it."""
    if is_bundle(root):
        return [(root / BUNDLE_NAME, entry.pointer) for entry in read_bundle(root).entries]
    return [(path, read_pointer(path)) for path in _pointers(root)]


def _pointers(root: Path) -> list[Path]:
    return sorted((root / POINTERS).glob("*/*/*/*.json"))


def _artifact(root: Path, path: Path) -> Artifact | None:
    pointer = read_pointer(path)
    return None if pointer is None else read_artifact(root, pointer)


def _order(entry: Entry) -> tuple[str, str, str, str]:
    manifest = entry.artifact.manifest
    return manifest.target, manifest.key, manifest.pass_name, manifest.family


def _build_directories(root: Path) -> Iterator[Path]:
    """Every directory of a build; a name that is no target is left alone: it isn't ours."""
    for name in TARGETS:
        if (root / name).is_dir():
            yield from (p for p in sorted((root / name).iterdir()) if p.is_dir())


def _leftovers(root: Path) -> Iterator[Path]:
    for name in (BATCHES, LOCKS):  # a lock only saves work, so an old one may go even if held
        if (root / name).is_dir():
            yield from sorted((root / name).iterdir())
    for name in SERVICE_DIRECTORIES:
        yield from sorted((root / name).rglob(f".*{TEMPORARY_SUFFIX}"))


def _age(path: Path) -> float:
    """Seconds since ``path`` or anything in it was last written."""
    times = []
    for part in (path, *path.rglob("*")):
        try:
            times.append(part.stat().st_mtime)
        except OSError:  # a build in another process may be moving things
            continue
    return time.time() - max(times, default=0.0)


def _size(path: Path) -> int:
    total = 0
    for part in (path, *path.rglob("*")):
        try:
            total += part.stat().st_size if part.is_file() else 0
        except OSError:
            continue
    return total


def _remove(root: Path, doomed: list[Path]) -> Removed:
    """Remove ``doomed`` in its order: pointers come first, so that no lookup sees half an entry."""
    removed: list[Path] = []
    freed = 0
    with writing(root):
        for path in sorted(dict.fromkeys(doomed), key=lambda p: p.is_dir()):
            if not path.exists():
                continue
            freed += _size(path)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return Removed(tuple(removed), freed)
