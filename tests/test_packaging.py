"""The wheel and the sdist ship the whole tree, and an installed wheel works."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = [
    ("generator", "*.py"),
    ("runtime", "*.py"),
    ("templates", "*.j2"),
    ("templates", "*.cuh"),
    ("templates", "*.h"),
    ("specs", "*.yaml"),
]


def tree() -> set[str]:
    """Paths below the package of every file that must ship."""
    package = ROOT / "src" / "flashgen"
    files = {
        f"flashgen/{folder}/{path.relative_to(package / folder).as_posix()}"
        for folder, pattern in SHIPPED
        for path in (package / folder).rglob(pattern)
    }
    own = [("cli", "*.py"), ("flash_attn", "*.py"), ("integrations", "*.py")]
    own.append(("integrations", "*.yaml"))
    return files | {
        f"flashgen/{path.relative_to(package).as_posix()}"
        for folder, pattern in own
        for path in (package / folder).rglob(pattern)
    }


def has_recent_setuptools() -> bool:
    if importlib.util.find_spec("setuptools") is None:
        return False
    return int(version("setuptools").split(".")[0]) >= 77


def run_pip(*arguments: str | Path) -> None:
    # without isolation no index is needed; an old setuptools can't read pyproject.toml's licence
    isolation = ["--no-build-isolation"] if has_recent_setuptools() else []
    command = [sys.executable, "-m", "pip", *map(str, arguments), *isolation]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's files: building in place leaves folders that mix runs."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        return ROOT  # an unpacked sdist
    folder = tmp_path_factory.mktemp("checkout")
    for name in filter(None, listed.stdout.split("\0")):
        source, copied = ROOT / name, folder / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copied.symlink_to(source.readlink())
        elif source.is_file():
            copied.write_bytes(source.read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_pip("wheel", "-q", "--no-deps", "-w", folder, checkout)
    (path,) = folder.glob("flashgen-*.whl")
    return path


def test_the_tree_is_linked():
    assert len(tree()) > 40, "the links below src/flashgen are lost: a build would ship nothing"


def test_wheel_ships_the_tree_and_nothing_bare(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert tree() - names == set()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"flashgen"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_installed_wheel_lists_and_renders(wheel, tmp_path):
    site = tmp_path / "site with space"
    run_pip("install", "-q", "--no-deps", "--target", site, wheel)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    script = (
        "import flashgen, sys; from flashgen.generator.goldens import render_goldens;"
        "assert 'site with space' in flashgen.__file__, flashgen.__file__;"
        "render_goldens()"
    )
    for command in (["-c", script], ["-m", "flashgen", "list"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "d128-bf16-causal" in done.stdout


@pytest.mark.skipif(not has_recent_setuptools(), reason="needs setuptools 77 or newer here")
def test_sdist_ships_the_tree(checkout, tmp_path):
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", build, str(tmp_path)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("flashgen-*.tar.gz")
    names = {name.split("/", 1)[-1] for name in tarfile.open(archive).getnames()}
    assert {f"src/{path}" for path in tree()} - names == set()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert "tests/test_packaging.py" in names and "generated/README.md" in names
