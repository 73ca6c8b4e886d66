"""BuildRequest -> what it came to when it was last prepared, while nothing that decides it changes.

Planning and rendering both passes takes longer than all else that loading a built kernel does. The
cache keeps the fingerprint that they ended in, with the states of all files that they follow from:
templates, the generator's modules, and the packages that render and bind. Where a file's time,
size or inode is another one, or may change without showing, the request is prepared anew.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from .. import IMPORTED_NS
from ..generator.version import VERSION
from .atomic import write_atomic
from .cache import UNITS
from .manifest import sha256
from .spec_index import SETTLED_NS, FileState, state_of
from .unit import BINDING_MODULE, BuildRequest, Place, cpu_features

_PACKAGES = ("jinja2", BINDING_MODULE, "flashgen.runtime.unit", "flashgen.runtime.manifest")


class Remembered(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        sources: digest of the states of the files that it was prepared from.
        place: where its binary is looked up.
        library: path of the binary that was found there.
        state: of this file, when its checksum was right.
    """

    sources: str
    place: Place
    library: str = ""
    state: FileState | None = None

    def is_sound(self, library: Path) -> bool:
        """Whether ``library`` is the file whose checksum was right, unchanged."""
        return self.library == str(library) and self.state == state_of(library)


def recall(root: Path | None, request: BuildRequest, sources: str) -> Remembered | None:
    """What is remembered of ``request`` in the cache at ``root``; None where it no longer holds.

    Args:
        root: of the cache; None where there is none.
        request: what is wanted.
        sources: of `sources_state`.
    """
    if root is None or not sources:
        return None
    try:
        found = msgspec.json.decode(_path(root, request).read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.sources == sources else None


def remember(
    root: Path | None, request: BuildRequest, sources: str, place: Place, library: Path
) -> None:
    """Keep that ``request`` came to ``place``, and that ``library`` was found there and sound."""
    state = state_of(library)
    if root is None or not sources or state is None or not _is_settled(state):
        return
    path = _path(root, request)
    with suppress(OSError):  # a cache that can't be written costs time, no more
        path.parent.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.encode(Remembered(sources, place, str(library), state))
        write_atomic(path, data, durable=False)


def sources_state() -> str:
    """Digest of the states of all files that decide what a request comes to.

    "" where one is too young to tell: this process has its modules from when it began, and a file
    that changed since, or just before, may be another than what was imported.
    """
    files = [file for folder in _folders() for file in _states_below(str(folder))]
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return ""
        files.append(_state(spec.origin, os.stat(spec.origin)))  # noqa: PTH116  (quicker)
    if max(max(changed, modified) for _, modified, changed, _, _ in files) > _oldest_doubt():
        return ""
    return sha256(repr((VERSION, sys.version, os.uname().machine, sorted(files))).encode())


def _folders() -> tuple[Path, ...]:
    package = Path(__file__).parent.parent
    return package / "generator", package / "templates"


def _states_below(folder: str) -> list[tuple[str, int, int, int, int]]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    found += _states_below(entry.path)
            else:
                found.append(_state(entry.path, entry.stat()))
    return found


def _state(path: str, status: os.stat_result) -> tuple[str, int, int, int, int]:
    times = status.st_mtime_ns, status.st_ctime_ns
    return path, *times, status.st_size, status.st_ino


def _oldest_doubt() -> int:
    return IMPORTED_NS - SETTLED_NS


def _is_settled(state: FileState) -> bool:
    return max(state.modified_ns, state.changed_ns) < _oldest_doubt()


def _path(root: Path, request: BuildRequest) -> Path:
    facts = [repr(request)]
    if request.target.is_cpu:  # "native" code is of the machine's own instructions
        facts += sorted(cpu_features())
    return root / UNITS / f"{sha256(repr(facts).encode())[:32]}.json"
