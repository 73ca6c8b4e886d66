"""Build -> manifest.json: what a cached binary is, how it was made, and its checksums."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from .ptxas import KernelResources

LAYOUT = 1  # of the cache; a change makes every older entry a miss
MANIFEST_NAME = "manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    """One file of an artifact: its path below the directory, size and checksum."""

    path: str
    size_bytes: int
    sha256: str


class CompilerRecord(msgspec.Struct, frozen=True):
    """A compiler that took part in a build."""

    name: str
    path: str
    version: str
    identity: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is known of one binary.

    Attributes:
        key: the variant's key.
        name: the kernel's and the files' stem, such as ``fwd_d128_bf16_causal_sm80``.
        library: path of the shared object below the directory.
        source: path of the source that it was compiled from.
        source_fingerprint: sha256 of all that decides the binary but the compiler.
        compiler_fingerprint: sha256 of the compilers' identities.
        plan: the KernelPlan as plain data.
        smem_bytes: dynamic shared memory of a block that the launch asks for, in bytes.
        flags: the compiler's flags, paths left out.
        command: the command line, for a person to repeat.
        resources: what ptxas said of each kernel.
        warnings: warnings of the compilers.
        built_at: UTC, ISO 8601.
        build_seconds: wall time of the compiler.
    """

    layout: int = LAYOUT
    flashgen: str
    key: str
    pass_name: str
    target: str
    family: str
    name: str
    library: str
    source: str
    source_fingerprint: str
    compiler_fingerprint: str
    compilers: tuple[CompilerRecord, ...]
    binding_abi: str
    plan: dict[str, Any]
    smem_bytes: int
    flags: tuple[str, ...]
    command: str
    resources: tuple[KernelResources, ...]
    warnings: tuple[str, ...]
    built_at: str
    build_seconds: float
    files: tuple[FileRecord, ...]

    @property
    def fingerprint(self) -> str:
        """Source and compiler fingerprints in one."""
        return combined_fingerprint(self.source_fingerprint, self.compiler_fingerprint)

    def file(self, path: str) -> FileRecord | None:
        """The record of the file at ``path`` below the directory."""
        return next((record for record in self.files if record.path == path), None)


class Pointer(msgspec.Struct, frozen=True):
    """Which directory serves (key, pass, target, family, fingerprint) now.

    Attributes:
        directory: path below the cache's root.
        manifest_sha256: checksum of its manifest.
        source_fingerprint: as in the manifest, so that a lookup reads no manifest in vain.
        compiler_fingerprint: likewise.
    """

    directory: str
    manifest_sha256: str
    source_fingerprint: str
    compiler_fingerprint: str


def combined_fingerprint(source: str, compiler: str) -> str:
    """The sha256 that stands for a source fingerprint and a compiler fingerprint together."""
    return sha256(f"{source} {compiler}".encode())


def sha256(data: bytes) -> str:
    """The checksum of ``data``, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def encode(value: msgspec.Struct) -> bytes:
    """``value`` as indented JSON, the same bytes each time."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
