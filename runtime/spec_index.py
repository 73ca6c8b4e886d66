"""Spec files -> which of them may say what a name stands for, remembered between processes.

Reading the whole catalogue takes longer than all else that loading a built kernel does. The cache
keeps each file's names and keys, with the file's state when it was read, so that a process that
wants one kernel reads the one or two files that list it. What isn't remembered is read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from ..generator.errors import CacheError
from ..generator.spec import Spec
from ..generator.variant import PASSES
from ..generator.version import VERSION
from . import paths
from .atomic import write_atomic

INDEX = "specs"
INDEX_NAME = "index.json"
SETTLED_NS = 2_000_000_000  # a younger file may change again and keep its time and size


class FileState(msgspec.Struct, frozen=True):
    """What differs between two contents of a file, as the file system tells it."""

    modified_ns: int
    changed_ns: int
    size_bytes: int
    inode: int


class IndexedFile(msgspec.Struct, frozen=True):
    """One spec file.

    Attributes:
        state: when it was read.
        names: of its specs, and the keys of their variants.
        plain: the keys of presets whose last spec here adds nothing to them: neither a choice of
            passes nor a tuning.
    """

    state: FileState
    names: tuple[str, ...]
    plain: tuple[str, ...] = ()

    def lists(self, name: str) -> bool:
        """Whether ``name`` is a spec or a key of it."""
        return name in self.names


class SpecIndex(msgspec.Struct, frozen=True):
    """The files remembered, by their absolute paths, and the version that read them."""

    flashgen: str = VERSION
    files: dict[str, IndexedFile] = {}

    @classmethod
    def read(cls) -> SpecIndex:
        """The index of the cache; an empty one where there is none of this version."""
        try:
            found = msgspec.json.decode(_path().read_bytes(), type=cls)
        except (OSError, CacheError, msgspec.MsgspecError, UnicodeDecodeError):
            return cls()
        return found if found.flashgen == VERSION else cls()

    def known(self, file: Path, state: FileState | None) -> IndexedFile | None:
        """What is remembered of ``file`` if it was in ``state`` then."""
        found = self.files.get(str(file if file.is_absolute() else file.absolute()))
        return found if found is not None and found.state == state else None

    def remember(self, read: Iterable[tuple[Path, FileState | None, tuple[Spec, ...]]]) -> None:
        """Keep the names of files that were ``read``; a cache that can't be written keeps none."""
        settled = time.time_ns() - SETTLED_NS
        new = {
            str(file.absolute()): IndexedFile(state, _names(specs), _plain(specs))
            for file, state, specs in read
            if state is not None and state.modified_ns < settled
        }
        if not new:
            return
        kept = {name: known for name, known in self.files.items() if Path(name).exists()}
        with suppress(OSError, CacheError):
            path = _path()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, msgspec.json.encode(SpecIndex(files=kept | new)), durable=False)


def state_of(file: Path) -> FileState | None:
    """The state of ``file``, taken before it is read; None where it can't be had."""
    try:
        status = os.stat(file)  # noqa: PTH116  (Path.stat takes twice as long, for every spec)
    except OSError:
        return None
    return FileState(status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _names(specs: tuple[Spec, ...]) -> tuple[str, ...]:
    keys = (variant.key for spec in specs for variant in spec.variants)
    return tuple(dict.fromkeys((*(spec.name for spec in specs), *keys)))


def _plain(specs: tuple[Spec, ...]) -> tuple[str, ...]:
    last = {
        variant.key: variant.body is None and spec.passes == PASSES and not spec.tuning
        for spec in specs
        for variant in spec.variants
    }
    return tuple(key for key, adds_nothing in last.items() if adds_nothing)


def _path() -> Path:
    return paths.cache_root() / INDEX / INDEX_NAME
