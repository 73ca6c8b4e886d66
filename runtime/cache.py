"""Unit + compiler -> Artifact: the cache of built binaries, one directory each.

    <root>/<target>/<name>-<fingerprint>-<unique>/   source, headers, library, build.log, manifest
    <root>/pointers/<target>/<family>/<pass>/<key>@<source>-<compiler>.json
    <root>/{locks,batches,templates,toolchain,specs}/  helpers, safe to delete when nothing runs

An artifact's directory is written once and never again: its manifest comes last, then the pointer
is replaced. So a lookup needs no lock, and a rebuilt binary has a new path, which a process that
has mapped the old one needs in order to see the new code.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock
import msgspec

from ..generator.errors import CacheError
from . import knobs, paths
from .atomic import sync, write_atomic
from .manifest import LAYOUT, MANIFEST_NAME, Manifest, Pointer, combined_fingerprint, encode, sha256
from .ptxas import KernelResources
from .spec_index import INDEX
from .unit import Unit

POINTERS = "pointers"
LOCKS = "locks"
BATCHES = "batches"
TEMPLATES = "templates"
TOOLCHAIN = "toolchain"
SERVICE_DIRECTORIES = (POINTERS, LOCKS, BATCHES, TEMPLATES, TOOLCHAIN, INDEX)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built binary in the cache.

    Attributes:
        directory: where it lies; never reused for another build.
        manifest: what it is and how it was made.
    """

    directory: Path
    manifest: Manifest

    @property
    def library(self) -> Path:
        """The shared object."""
        return self.directory / self.manifest.library

    @property
    def source(self) -> Path:
        """The source that it was compiled from."""
        return self.directory / self.manifest.source

    @property
    def resources(self) -> tuple[KernelResources, ...]:
        """What ptxas said of each kernel; empty for the CPU."""
        return self.manifest.resources

    @property
    def fingerprint(self) -> str:
        """All that decided the binary, as one sha256."""
        return self.manifest.fingerprint


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache below ``root``, and read-only ones that are searched after it.

    Attributes:
        root: the directory that builds go to, made when first written; None where the
            environment names none, and then only `prebuilt` serves.
        prebuilt: bundles; they serve whatever compiler this machine has, since who names them
            wants them used. They come second so that a rebuilt kernel takes their place.
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
        found = None if self.root is None else _find(self.root, unit, compiler)
        for root in self.prebuilt:
            found = found or _find(root, unit, compiler) or _find(root, unit, None)
        return found

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
        path = _pointer_directory(root, unit) / _pointer_name(unit, pointer)
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


def read_pointer(path: Path) -> Pointer | None:
    """The pointer at ``path``, or None where it is missing or torn."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Pointer)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_artifact(root: Path, pointer: Pointer) -> Artifact | None:
    """The artifact that ``pointer`` names, its manifest checked, its other files not."""
    directory = root / pointer.directory
    try:
        data = (directory / MANIFEST_NAME).read_bytes()
        if sha256(data) != pointer.manifest_sha256:
            return None
        manifest = msgspec.json.decode(data, type=Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return Artifact(directory, manifest) if manifest.layout == LAYOUT else None


def file_fault(artifact: Artifact, path: str) -> str | None:
    """What is wrong with the file at ``path`` of ``artifact``; None where it is sound."""
    record = artifact.manifest.file(path)
    if record is None:
        return f"{path}: not in the manifest"
    try:
        data = (artifact.directory / path).read_bytes()
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if len(data) != record.size_bytes:
        return f"{path}: expected {record.size_bytes} bytes, got {len(data)}"
    return None if sha256(data) == record.sha256 else f"{path}: the checksum differs"


def _find(root: Path, unit: Unit, compiler: str | None) -> Artifact | None:
    directory = _pointer_directory(root, unit)
    stem = _pointer_stem(unit)
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
            or pointer.source_fingerprint != unit.source_fingerprint
            or (compiler is not None and pointer.compiler_fingerprint != compiler)
        ):
            continue
        artifact = read_artifact(root, pointer)
        if artifact is not None and file_fault(artifact, artifact.manifest.library) is None:
            return artifact
    return None


def _pointer_directory(root: Path, unit: Unit) -> Path:
    chosen = unit.plan
    return root / POINTERS / chosen.target.name / chosen.family / chosen.pass_name


def _pointer_stem(unit: Unit) -> str:
    return f"{unit.plan.variant.key}@{unit.source_fingerprint[:16]}-"


def _pointer_name(unit: Unit, pointer: Pointer) -> str:
    return f"{_pointer_stem(unit)}{pointer.compiler_fingerprint[:8]}.json"
