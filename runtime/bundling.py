"""Artifacts and specs -> a bundle's folder, which is the old one or the new one at any moment."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..generator.arch import TARGETS
from ..generator.errors import CacheError
from ..generator.version import VERSION
from .artifact import Artifact
from .atomic import sync, write_atomic
from .bundle import (
    BUNDLE_NAME,
    Bundle,
    BundleEntry,
    is_bundle,
    needed_glibc,
    read_bundle,
)
from .manifest import MANIFEST_NAME, FileRecord, Manifest, Pointer, encode, sha256
from .ninja_file import LOG_NAME
from .paths import BUNDLED_SPECS
from .unit import BuildRequest, binding_abi

_LEFT_BEHIND = (".d", ".log")  # a compiler's list of this machine's headers, and its messages


@dataclass(frozen=True, slots=True)
class Packed:
    """One kernel to put in a bundle: what was asked for, and what was built."""

    request: BuildRequest
    artifact: Artifact


def write_bundle(folder: Path, kernels: Sequence[Packed], spec_files: Sequence[Path]) -> Bundle:
    """Put ``kernels`` into the bundle at ``folder``, which is made where there is none.

    What a bundle has already stays, unless it is of another flashgen; a kernel of the same key,
    pass, target and family takes the old one's place. Whoever reads the folder meanwhile sees all
    of the old bundle or all of the new one.

    Args:
        folder: the bundle's; its parents are made.
        kernels: what to put in.
        spec_files: YAML files that the machine which loads them needs, to know their names.

    Raises:
        CacheError: when ``folder`` holds something else, or can't be written.
    """
    _refuse_other_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            old = _old_bundle(folder)
            bundle = _extended(folder, old, kernels, spec_files)
            write_atomic(folder / BUNDLE_NAME, encode(bundle))
            _remove_what_is_no_part(folder, bundle)
    except OSError as error:
        raise CacheError(
            f"bundle {folder}: expected to be able to write it, got {error.strerror or error}. "
            "Choose another folder."
        ) from error
    return bundle


def _refuse_other_folders(folder: Path) -> None:
    is_other = folder.exists() and not is_bundle(folder)
    if is_other and (not folder.is_dir() or any(folder.iterdir())):
        raise CacheError(
            f"bundle {folder}: expected a new or empty folder or a bundle, got something else. "
            "Choose another folder."
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock is on the directory itself, so that it leaves no file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _old_bundle(folder: Path) -> Bundle | None:
    try:
        return read_bundle(folder)
    except CacheError:  # none yet, or nothing in it could be loaded by this flashgen
        return None


def _extended(
    folder: Path, old: Bundle | None, kernels: Sequence[Packed], spec_files: Sequence[Path]
) -> Bundle:
    """Copy what is new beside what is there, which no reader sees yet."""
    entries = {entry.identity: entry for entry in old.entries} if old else {}
    for packed in kernels:
        entry = _copied(folder, packed)
        entries[entry.identity] = entry
    specs = {*(old.specs if old else ()), *(_copied_spec(folder, file) for file in spec_files)}
    least = [needed_glibc(packed.artifact.library.read_bytes()) for packed in kernels]
    return Bundle(
        flashgen=VERSION,
        binding_abi=binding_abi(),
        machine=os.uname().machine,
        glibc=max([*least, old.glibc if old else (0, 0)]),
        specs=tuple(sorted(specs)),
        entries=tuple(entries[identity] for identity in sorted(entries)),
    )


def _copied(folder: Path, packed: Packed) -> BundleEntry:
    manifest = _manifest_without_logs(packed.artifact.manifest)
    name = f"{manifest.name}-{manifest.fingerprint[:8]}-{secrets.token_hex(4)}"
    directory = folder / manifest.target / name
    for record in manifest.files:
        path = directory / record.path
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(packed.artifact.directory / record.path, path)
    sync(directory / manifest.library)
    data = encode(manifest)
    write_atomic(directory / MANIFEST_NAME, data)
    pointer = Pointer(
        directory.relative_to(folder).as_posix(),
        sha256(data),
        manifest.source_fingerprint,
        manifest.compiler_fingerprint,
    )
    return BundleEntry(
        key=manifest.key,
        pass_name=manifest.pass_name,
        target=manifest.target,
        family=manifest.family,
        pins=dict(packed.request.pins),
        pointer=pointer,
    )


def _manifest_without_logs(manifest: Manifest) -> Manifest:
    kept: tuple[FileRecord, ...] = tuple(
        record
        for record in manifest.files
        if record.path != LOG_NAME and Path(record.path).suffix not in _LEFT_BEHIND
    )
    return msgspec.structs.replace(manifest, files=kept)


def _copied_spec(folder: Path, file: Path) -> str:
    data = file.read_bytes()
    name = f"{file.stem}-{sha256(data)[:8]}.yaml"
    (folder / BUNDLED_SPECS).mkdir(exist_ok=True)
    write_atomic(folder / BUNDLED_SPECS / name, data)
    return name


def _remove_what_is_no_part(folder: Path, bundle: Bundle) -> None:
    """Remove replaced kernels, and what an interrupted call has left."""
    kept = {folder / entry.pointer.directory for entry in bundle.entries}
    for target in TARGETS:
        if not (folder / target).is_dir():
            continue
        for path in (folder / target).iterdir():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
        if not any((folder / target).iterdir()):
            (folder / target).rmdir()
    if (folder / BUNDLED_SPECS).is_dir():
        for path in (folder / BUNDLED_SPECS).iterdir():
            if path.name not in bundle.specs:
                path.unlink(missing_ok=True)
