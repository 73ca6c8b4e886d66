"""Pointer -> Artifact: a built binary on disk, its manifest and files checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from .manifest import LAYOUT, MANIFEST_NAME, Manifest, Pointer, sha256
from .ptxas import KernelResources


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built binary in a cache or a bundle.

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
