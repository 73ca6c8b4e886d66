"""The environment: each variable's type, default and refusal, and the paths that follow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashgen.generator.errors import CacheError, FlashgenError
from flashgen.runtime import knobs, paths

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for knob in knobs.KNOBS:
        monkeypatch.delenv(knob.name, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_there_are_seven_and_each_is_described():
    assert [knob.name for knob in knobs.KNOBS] == [
        "FLASHGEN_CACHE_DIR",
        "FLASHGEN_SPECS",
        "FLASHGEN_CUDA_HOME",
        "FLASHGEN_MAX_JOBS",
        "FLASHGEN_LOG",
        "FLASHGEN_PREBUILT",
        "FLASHGEN_BUILD",
    ]
    for knob in (*knobs.KNOBS, *knobs.FOREIGN):
        assert knob.type and knob.default and knob.effect.endswith("."), knob.name


def test_the_readme_has_each_as_it_is():
    text = README.read_text(encoding="utf-8") if README.is_file() else ""
    rows = [line for line in text.splitlines() if line.startswith("| `FLASHGEN_")]
    if not rows:
        pytest.skip("the README has no table of variables here")
    assert rows == [f"| `{k.name}` | {k.type} | {k.default} | {k.effect} |" for k in knobs.KNOBS]


@pytest.mark.parametrize("text", [None, "", "  "])
def test_defaults(monkeypatch, text):
    for knob in knobs.KNOBS:
        if text is not None:
            monkeypatch.setenv(knob.name, text)
        assert not knob.is_set
    assert knobs.CACHE_DIR.get() is knobs.CUDA_HOME.get() is knobs.MAX_JOBS.get() is None
    assert knobs.SPECS.get() == knobs.PREBUILT.get() == ()
    assert knobs.LOG.get() == "info"
    assert knobs.BUILD.get() == "auto"


def test_values(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "ein Ordner/é")
    assert knobs.CACHE_DIR.get() == tmp_path / "ein Ordner" / "é"
    assert paths.cache_root() == tmp_path / "ein Ordner" / "é"
    monkeypatch.setenv("FLASHGEN_SPECS", os.pathsep.join(["a", "", "~/b"]))
    assert knobs.SPECS.get() == (tmp_path / "a", Path("~/b").expanduser())
    monkeypatch.setenv("FLASHGEN_PREBUILT", "c")
    assert paths.prebuilt_roots() == (tmp_path / "c",)
    monkeypatch.setenv("FLASHGEN_MAX_JOBS", " 3 ")
    assert knobs.MAX_JOBS.get() == 3
    monkeypatch.setenv("FLASHGEN_LOG", "DEBUG")
    assert knobs.LOG.get() == "debug"
    assert knobs.LOG.is_set


@pytest.mark.parametrize(
    ("knob", "text"),
    [
        (knobs.MAX_JOBS, "0"),
        (knobs.MAX_JOBS, "-2"),
        (knobs.MAX_JOBS, "many"),
        (knobs.MAX_JOBS, "1.5"),
        (knobs.LOG, "loud"),
        (knobs.BUILD, "always"),
    ],
)
def test_refusals(monkeypatch, knob, text):
    monkeypatch.setenv(knob.name, text)
    with pytest.raises(FlashgenError) as caught:
        knob.get()
    message = str(caught.value)
    assert message.startswith(f"{knob.name}: expected ")
    assert repr(text) in message and knob.default in message


def test_cache_root_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_root() == tmp_path / ".cache" / "flashgen"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert paths.cache_root() == tmp_path / "xdg" / "flashgen"
    assert not (tmp_path / "xdg").exists()


def test_without_home_the_message_names_directory_and_variable(monkeypatch):
    monkeypatch.delenv("HOME")
    with pytest.raises(CacheError) as caught:
        paths.cache_root()
    assert "~/.cache/flashgen" in str(caught.value)
    assert "FLASHGEN_CACHE_DIR" in str(caught.value)


def test_shipped_folders():
    assert (paths.shipped_specs() / "models" / "llama.yaml").is_file()
    assert (paths.shipped_templates() / "host" / "abi.h").is_file()
