"""What the tests of building, caching and loading share: a cache, a compiler that counts."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from flashgen.generator.arch import parse_target
from flashgen.generator.variant import parse_key
from flashgen.runtime import toolchain
from flashgen.runtime.build import BuildRequest
from flashgen.runtime.cache import Cache


@dataclass(frozen=True)
class CountingCompiler:
    """A host compiler that notes each compilation, and whose doings a test can set."""

    path: Path
    log: Path

    @property
    def compilations(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def write(self, before: str = "", version: str = "12.2.0") -> None:
        """Be one that compiles nothing, for tests that load nothing: the output is a stub.

        ``before`` is shell that runs ahead of each compilation, in the unit's directory.
        """
        stub = 'while [ "$1" != -o ]; do shift; done; echo stub > "$2"'
        self._write(f'case "$*" in *version*) echo {version}; exit;; esac', before, stub)

    def write_real(self, before: str = "") -> None:
        """Be g++, without optimising."""
        real = shutil.which("g++")
        self._write(
            f'case "$*" in *version*) exec {real} "$@";; esac', before, f'exec {real} "$@" -O0'
        )

    def _write(self, version: str, before: str, compile_command: str) -> None:
        note = f"echo run >> {shlex.quote(str(self.log))}"
        self.path.write_text("\n".join(("#!/bin/sh", version, note, before, compile_command, "")))
        self.path.chmod(0o755)


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> CountingCompiler:
    """The host compiler is a counting one."""
    counting = CountingCompiler(tmp_path / "counting-g++", tmp_path / "compilations.log")
    counting.write()
    monkeypatch.setenv("CXX", str(counting.path))
    return counting


@pytest.fixture
def cache_root(tmp_path, monkeypatch) -> Path:
    """A cache directory that the environment names too, and no memory of compilers."""
    root = tmp_path / "cache"
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(root))
    monkeypatch.delenv("FLASHGEN_PREBUILT", raising=False)
    monkeypatch.setattr(toolchain, "_known", {})
    return root


@pytest.fixture
def cache(cache_root) -> Cache:
    return Cache(cache_root)


@pytest.fixture
def request_for():
    """Makes a BuildRequest of a key, pass and target given as text."""

    def make(key="d8-fp32", pass_name="forward", target="cpu", **more) -> BuildRequest:
        return BuildRequest(parse_key(key), pass_name, parse_target(target), **more)

    return make
