"""What the tests of building, caching and loading share: a cache of their own, counted compilers."""

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
    """A g++ that notes each compilation; what it adds to the command can be changed."""

    path: Path
    log: Path

    @property
    def compilations(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def write(self, extra: str = "-O0", before: str = "") -> None:
        """Make the script: ``before`` is shell run ahead of a compilation, ``extra`` its flags."""
        real = shutil.which("g++")
        self.path.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *version*) exec {real} "$@";; esac\n'
            f"echo run >> {shlex.quote(str(self.log))}\n{before}\n"
            f'exec {real} "$@" {extra}\n'
        )
        self.path.chmod(0o755)


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> CountingCompiler:
    """The host compiler is a counting one, which doesn't optimise, so that builds are quick."""
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
