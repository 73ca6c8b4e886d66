"""Bytes -> a file that is either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` in one step; its directory must exist.

    Args:
        path: the file to write.
        data: its content.
        durable: also flush it to the disk first, so that a crash of the machine leaves no empty
            file under the name.

    Raises:
        OSError: when the directory can't be written.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    # not tempfile: its files are private, and a cache may be shared by a group
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file or a directory's names to the disk, where the file system can."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
