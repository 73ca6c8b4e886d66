"""Unit + compiler -> Artifact: the cache of built binaries, one directory each.

    <root>/<target>/<name>-<fingerprint>-<unique>/   source, headers, library, build.log, manifest
    <root>/pointers/<target>/<family>/<pass>/<key>@<source>-<compiler>.json
    <root>/tuned/<device>/<target>/<family>/<pass>/<key>.json   what `flashgen tune` found
    <root>/{locks,batches,templates,toolchain,units,specs}/  helpers, safe to delete while idle

An artifact's directory is written once and never again: its manifest comes last, then the pointer
is replaced. So a lookup needs no lock, and a rebuilt binary has a new path, which a process that
has mapped the old one needs in order to see the new code.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock

from ..generator.errors import CacheError
from . import bundle, knobs, paths
from .artifact import Artifact, file_fault, read_artifact, read_pointer
from .atomic import sync, write_atomic
from .manifest import MANIFEST_NAME, Manifest, Pointer, combined_fingerprint, encode, sha256
from .spec_index import INDEX
from .unit import Place, Unit

POINTERS = "pointers"
LOCKS = "locks"
BATCHES = "batches"
TEMPLATES = "templates"
TOOLCHAIN = "toolchain"
TUNED = "tuned"
UNITS = "units"
SERVICE_DIRECTORIES = (POINTERS, LOCKS, BATCHES, TEMPLATES, TOOLCHAIN, TUNED, UNITS, INDEX)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache below ``root``, and read-only ones that are searched after it.

    Attributes:
        root: the directory that builds go to, made when first written; None where the
            environment names none, and then only `prebuilt` serves.
        prebuilt: bundles, or other caches; they serve whatever compiler this machine has, since
            who names them wants them used. They come second so that a rebuilt kernel takes their
            place.
    """

    root: Path | None
    prebuilt: tuple[Path, ...] = ()

    @classmethod
    def default(cls) -> Cache:
        """The cache that the environment names.

        Raises:
            CacheError: when it names neither a cache nor prebuilt kernels.
        """
        prebuilt = paths.prebuilt_roots()
        try:
            return cls(paths.cache_root(), prebuilt)
        except CacheError:
            if not prebuilt:
                raise
            return cls(None, prebuilt)

    @property
    def template_cache(self) -> Path | None:
        """Directory of Jinja's compiled templates."""
        return None if self.root is None else self.root / TEMPLATES

    @property
    def writable_root(self) -> Path:
        """The directory that builds go to.

        Raises:
            CacheError: when there is none; says which variable to set.
        """
        return paths.cache_root() if self.root is None else self.root

    def lookup(self, unit: Unit, compiler: str | None) -> Artifact | None:
        """The sound artifact of ``unit``, or None: a missing, torn or altered one is a miss.

        Args:
            unit: what is wanted; its source fingerprint must match.
            compiler: fingerprint of this machine's toolchain; None where there is none, and then
                any compiler's will do.
        """
        found = None if self.root is None else find_at(self.root, unit.place, compiler)
        for root in self.prebuilt:
            found = found or _find_prebuilt(root, unit, compiler)
        return found

    def refusals(self, unit: Unit) -> list[str]:
        """Why no prebuilt kernel serves ``unit``: a sentence for each of ``prebuilt``."""
        return [bundle.refusal(root, unit) for root in self.prebuilt]

    def new_directory(self, unit: Unit, compiler: str) -> Path:
        """A directory of its own for one build of ``unit``.

        Raises:
            CacheError: when the cache can't be written.
        """
        fingerprint = combined_fingerprint(unit.source_fingerprint, compiler)
        name = f"{unit.plan.name}-{fingerprint[:8]}-{secrets.token_hex(4)}"
        root = self.writable_root
        directory = root / unit.plan.target.name / name
        with writing(root):
            directory.mkdir(parents=True)
        return directory

    def publish(self, unit: Unit, directory: Path, manifest: Manifest) -> Artifact:
        """Make the build in ``directory`` the one that serves ``unit``.

        Raises:
            CacheError: when the cache can't be written.
        """
        root = self.writable_root
        data = encode(manifest)
        pointer = Pointer(
            directory.relative_to(root).as_posix(),
            sha256(data),
            manifest.source_fingerprint,
            manifest.compiler_fingerprint,
        )
        path = _pointer_directory(root, unit.place) / _pointer_name(unit.place, pointer)
        with writing(root):
            sync(directory / manifest.library)
            write_atomic(directory / MANIFEST_NAME, data)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, encode(pointer))
        return Artifact(directory, manifest)

    def lock(self, unit: Unit) -> filelock.FileLock:
        """The lock on building ``unit``; the kernel frees it when its holder dies.

        It only saves work: two builds of one unit would both be sound. The name has part of the
        fingerprint so that several plans of one key can be built side by side.

        Raises:
            CacheError: when the cache can't be written.
        """
        chosen = unit.plan
        kind = f"{chosen.target.name}-{chosen.family}-{chosen.pass_name}"
        name = f"{kind}-{chosen.variant.key}-{unit.source_fingerprint[:8]}"
        root = self.writable_root
        directory = root / LOCKS
        with writing(root):
            directory.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(str(directory / f"{name}.lock"))


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turn a failure to write below ``root`` into a CacheError that says what to set."""
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"cache directory {root}: expected to be able to write it, got "
            f"{error.strerror or error}. Set {knobs.CACHE_DIR.name} to a directory that can be "
            "written."
        ) from error


def _find_prebuilt(root: Path, unit: Unit, compiler: str | None) -> Artifact | None:
    if bundle.is_bundle(root):
        return bundle.lookup(root, unit)
    return find_at(root, unit.place, compiler) or find_at(root, unit.place, None)


def find_at(
    root: Path, place: Place, compiler: str | None, sound: Callable[[Path], bool] | None = None
) -> Artifact | None:
    """The sound artifact of ``place`` in the cache at ``root``, or None.

    Args:
        root: of the cache.
        place: what is wanted.
        compiler: as `Cache.lookup` takes it.
        sound: whether a library needs no look at its checksum.
    """
    directory = _pointer_directory(root, place)
    stem = _pointer_stem(place)
    if compiler is not None:
        pointers = [directory / f"{stem}{compiler[:8]}.json"]
    else:
        try:
            pointers = sorted(p for p in directory.iterdir() if p.name.startswith(stem))
        except OSError:
            return None
    for path in pointers:
        pointer = read_pointer(path)
        if (
            pointer is None
            or pointer.source_fingerprint != place.source_fingerprint
            or (compiler is not None and pointer.compiler_fingerprint != compiler)
        ):
            continue
        artifact = read_artifact(root, pointer)
        if artifact is None:
            continue
        if sound is not None and sound(artifact.library):
            return artifact
        if file_fault(artifact, artifact.manifest.library) is None:
            return artifact
    return None


def _pointer_directory(root: Path, place: Place) -> Path:
    return root / POINTERS / place.target / place.family / place.pass_name


def _pointer_stem(place: Place) -> str:
    return f"{place.key}@{place.source_fingerprint[:16]}-"


def _pointer_name(place: Place, pointer: Pointer) -> str:
    return f"{_pointer_stem(place)}{pointer.compiler_fingerprint[:8]}.json"
