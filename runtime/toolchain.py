"""Machine -> Toolchain: the compilers that build a target, with their versions.

Discovery order of nvcc: explicit option, FLASHGEN_CUDA_HOME, CUDA_HOME, CUDA_PATH, PATH, the pip
packages. A compiler's version is asked once and then kept in the cache directory, so that a warm
load starts no process.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..generator.arch import Target
from ..generator.errors import CacheError, ToolchainError
from . import knobs, paths
from .atomic import write_atomic

PIP_CUDA = Path("nvidia") / "cu13"  # where the wheels of CUDA 13 put bin/, lib/ and include/
INSTALL_NVCC = "Install one with: pip install 'flashgen[cuda]'"
INSTALL_HOST = "Install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++)"
MIN_NVCC: dict[str, tuple[int, int]] = {
    # first toolkit that knows the architecture; Source: the CUDA Toolkit release notes
    "sm75": (10, 0),
    "sm80": (11, 0),
    "sm86": (11, 1),
    "sm87": (11, 5),
    "sm89": (11, 8),
    "sm90": (12, 0),
    "sm100": (12, 8),
    "sm120": (12, 8),
}
_VERSION_TIMEOUT_S = 30.0
_TOOLS_OF_NVCC = ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that was found and asked for its version.

    Attributes:
        path: the program to run.
        kind: "nvcc" or "host".
        version: as it prints it, such as ``13.0.88`` or ``12.2.0``.
        version_tuple: the same as numbers.
        identity: everything about it that can change its output; part of the fingerprint.
        origin: how it was found, for `flashgen doctor`.
        include_dirs: directories that its own configuration lacks.
        library_dirs: likewise, for ``-L``.
    """

    path: Path
    kind: str
    version: str
    version_tuple: tuple[int, ...]
    identity: str
    origin: str
    include_dirs: tuple[Path, ...] = ()
    library_dirs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What builds one target: its compiler, and the host compiler that nvcc calls."""

    compiler: Compiler
    host: Compiler

    @property
    def identity(self) -> str:
        """The identities of both compilers, one text."""
        if self.compiler is self.host:
            return self.host.identity
        return f"{self.compiler.identity}; {self.host.identity}"


def toolchain_for(target: Target, *, cuda_home: Path | None = None) -> Toolchain:
    """The compilers that build ``target``.

    Raises:
        ToolchainError: when one is missing, or nvcc is too old for ``target``.
    """
    host = find_host_compiler()
    if target.is_cpu:
        return Toolchain(host, host)
    nvcc = find_nvcc(cuda_home)
    require_nvcc_for(target, nvcc)
    return Toolchain(nvcc, host)


def require_nvcc_for(target: Target, nvcc: Compiler) -> None:
    """Raise a ToolchainError unless ``nvcc`` knows ``target``'s architecture."""
    least = MIN_NVCC.get(target.name, (0, 0))
    if nvcc.version_tuple[:2] < least:
        raise ToolchainError(
            f"toolchain: {target.name} needs nvcc {least[0]}.{least[1]} or newer, got "
            f"{nvcc.version} at {nvcc.path}. {INSTALL_NVCC}, or set {knobs.CUDA_HOME.name} to a "
            "newer toolkit."
        )


def find_nvcc(cuda_home: Path | None = None) -> Compiler:
    """The CUDA compiler.

    Args:
        cuda_home: toolkit directory that holds bin/nvcc; default, the discovery order above.

    Raises:
        ToolchainError: when there is none, or an explicitly named directory has none.
    """
    path, origin = _nvcc_path(cuda_home)
    identity = _identify(path, "nvcc")
    root = Path(identity.root) if identity.root else path.parent.parent
    # CUDA 13.0's wheels keep libraries in lib/, where their nvcc.profile does not look
    has_plain_lib = (root / "lib").is_dir() and not (root / "lib64").is_dir()
    return Compiler(
        path,
        "nvcc",
        identity.version,
        _numbers(identity.version),
        identity.text,
        origin,
        library_dirs=(root / "lib",) if has_plain_lib else (),
    )


def find_host_compiler() -> Compiler:
    """The C++ compiler: CXX where it is set, else g++ or c++ on PATH.

    Raises:
        ToolchainError: when there is none.
    """
    chosen = knobs.CXX.get()
    for name in (chosen,) if chosen else ("g++", "c++"):
        found = _which(name)
        if found:
            identity = _identify(found, "host")
            return Compiler(
                found,
                "host",
                identity.version,
                _numbers(identity.version),
                identity.text,
                "CXX" if chosen else "PATH",
            )
    if chosen:
        raise ToolchainError(
            f"toolchain: CXX: expected the name or path of a C++ compiler, got {chosen!r}. "
            "Unset it to use g++."
        )
    raise ToolchainError(f"toolchain: expected g++ on PATH, found none. {INSTALL_HOST}.")


def find_cuda_tool(name: str, cuda_home: Path | None = None) -> Path | None:
    """A program of the toolkit such as ``cuobjdump`` or ``nvdisasm``; None where absent."""
    homes = [cuda_home, knobs.CUDA_HOME.get()]
    homes += [knobs.SYSTEM_CUDA_HOME.get(), knobs.SYSTEM_CUDA_PATH.get()]
    found = [home / "bin" / name for home in homes if home is not None]
    on_path = _which(name)
    found += [on_path] if on_path else []
    found += [root / "bin" / name for root in pip_cuda_roots()]
    return next((path for path in found if _is_program(path)), None)


def pip_cuda_roots() -> tuple[Path, ...]:
    """Toolkit directories of the ``cuda-toolkit`` wheels on this interpreter's path."""
    roots = (Path(entry) / PIP_CUDA for entry in sys.path if entry)
    return tuple(dict.fromkeys(root for root in roots if root.is_dir()))


def _nvcc_path(cuda_home: Path | None) -> tuple[Path, str]:
    for home, origin in ((cuda_home, "--cuda-home"), (knobs.CUDA_HOME.get(), knobs.CUDA_HOME.name)):
        if home is None:
            continue
        if _is_program(home / "bin" / "nvcc"):
            return home / "bin" / "nvcc", origin
        raise ToolchainError(
            f"toolchain: {origin}: expected a directory that holds bin/nvcc, got {str(home)!r}. "
            f"Set it to a CUDA toolkit, or unset it to use PATH or the pip packages."
        )
    for knob in (knobs.SYSTEM_CUDA_HOME, knobs.SYSTEM_CUDA_PATH):
        home = knob.get()  # often names a toolkit without a compiler: then the search goes on
        if home is not None and _is_program(home / "bin" / "nvcc"):
            return home / "bin" / "nvcc", knob.name
    on_path = _which("nvcc")
    if on_path:
        return on_path, "PATH"
    for root in pip_cuda_roots():
        if _is_program(root / "bin" / "nvcc"):
            return root / "bin" / "nvcc", "pip packages"
    raise ToolchainError(
        "toolchain: expected nvcc in CUDA_HOME, on PATH or in the pip packages, found none. "
        f"{INSTALL_NVCC}."
    )


def _which(name: str) -> Path | None:
    found = shutil.which(name, path=knobs.PATH.get())
    return Path(found) if found else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


class _Identity(msgspec.Struct, frozen=True):
    """A compiler's answer to --version, kept beside the state of the files that gave it."""

    path: str
    files: tuple[tuple[str, int, int], ...]  # (path, mtime_ns, size)
    version: str
    text: str
    root: str = ""


_known: dict[Path, _Identity] = {}  # this process's answers, also where no cache can be written


def _identify(path: Path, kind: str) -> _Identity:
    """The identity of the compiler at ``path``, asked only when its files have changed."""
    store = _store_path(path)
    for known in (_known.get(path), _read_identity(store)):
        if known is not None and known.path == str(path) and known.files == _stat(known.files):
            _known[path] = known
            return known
    fresh = _ask_nvcc(path) if kind == "nvcc" else _ask_host(path)
    _known[path] = fresh
    if store is not None:
        with suppress(OSError):  # a cache that can't be written costs a process, no more
            store.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(store, msgspec.json.encode(fresh), durable=False)
    return fresh


def _store_path(path: Path) -> Path | None:
    try:
        root = paths.cache_root()
    except CacheError:
        return None
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return root / "toolchain" / f"{name}.json"


def _read_identity(store: Path | None) -> _Identity | None:
    if store is None:
        return None
    try:
        return msgspec.json.decode(store.read_bytes(), type=_Identity)
    except (OSError, msgspec.MsgspecError):
        return None


def _stat(files: tuple[tuple[str, int, int], ...]) -> tuple[tuple[str, int, int], ...]:
    return tuple(_stat_file(Path(name)) for name, _, _ in files)


def _stat_file(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), status.st_mtime_ns, status.st_size


def _ask_nvcc(path: Path) -> _Identity:
    text = _output([str(path), "--version"])
    match = re.search(r"release [\d.]+, V([\d.]+)", text)
    if not match:
        raise ToolchainError(
            f"toolchain: {path} --version: expected a CUDA compiler's version, got "
            f"{text.strip()[:200]!r}. {INSTALL_NVCC}, or set {knobs.CUDA_HOME.name}."
        )
    # what lies on PATH may be a script that runs the toolkit's own nvcc: watch that one too
    dry = _output([str(path), "--dryrun", "-E", "-x", "cu", os.devnull])
    here = re.search(r"^#\$ _HERE_=(.+)$", dry, re.MULTILINE)
    root = Path(here[1]).parent if here else path.resolve().parent.parent
    files = tuple(_stat_file(p) for p in (path, *(root / tool for tool in _TOOLS_OF_NVCC)))
    version = f"nvcc {match[1]}"
    ptxas = root / "bin" / "ptxas"
    if _is_program(ptxas):
        release = re.search(r"V([\d.]+)", _output([str(ptxas), "--version"]))
        version += f" ptxas {release[1]}" if release else ""
    return _Identity(str(path), files, match[1], version, str(root))


def _ask_host(path: Path) -> _Identity:
    first = next(iter(_output([str(path), "--version"]).splitlines()), "")
    version = next(iter(_output([str(path), "-dumpfullversion", "-dumpversion"]).split()), "")
    if not version[:1].isdigit():
        raise ToolchainError(
            f"toolchain: {path} --version: expected a C++ compiler's version, got "
            f"{first[:200]!r}. {INSTALL_HOST}."
        )
    text = f"{first} {version}"
    return _Identity(str(path), (_stat_file(path), _stat_file(path.resolve())), version, text)


def _output(command: list[str]) -> str:
    """What ``command`` prints on both streams."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(
            f"toolchain: {command[0]}: expected a compiler that runs, got {error}. "
            "Reinstall it, or put another one first on PATH."
        ) from error
    return done.stdout.decode(errors="replace")
