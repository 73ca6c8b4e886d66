"""Runs the command line in this process, with a cache and specs of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flashgen.cli.app import app
from flashgen.runtime import knobs

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests here that only read what an earlier one has built."""
    return tmp_path_factory.mktemp("cli-cache")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> Run:
    """``run("list", "--json")`` gives click's Result; ``cache=`` moves the cache."""
    for knob in knobs.KNOBS:
        monkeypatch.delenv(knob.name, raising=False)

    def invoke(*arguments: str | Path, cache: Path = shared_cache) -> Result:
        monkeypatch.setenv(knobs.CACHE_DIR.name, str(cache))
        return CliRunner().invoke(app, [*map(str, arguments)], prog_name="flashgen")

    return invoke


@pytest.fixture
def spec_dir(tmp_path: Path) -> Path:
    """A user's folder with one spec of four lines."""
    folder = tmp_path / "my specs"
    folder.mkdir()
    (folder / "mine.yaml").write_text("name: mine\nhead_dim: 24\ndtype: fp32\ncausal: true\n")
    return folder
