"""The index of spec files: a name finds what the whole catalogue would, from fewer files read."""

from __future__ import annotations

import os
import time

import pytest

from flashgen.generator.errors import SpecError
from flashgen.runtime import catalogue, spec_index
from flashgen.runtime.catalogue import Catalogue, find_for_load, find_one

MINE = "name: mine\nhead_dim: 80\ndtype: bf16\ncausal: true\n"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("FLASHGEN_SPECS", raising=False)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def files_read(monkeypatch):
    """The names of the spec files that are read."""
    read = []
    original = catalogue.read_spec_file

    def reading(file):
        read.append(file.name)
        return original(file)

    monkeypatch.setattr(catalogue, "read_spec_file", reading)
    return read


def write(folder, name, text, age_seconds=60):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    stamp = time.time() - age_seconds
    os.utime(file, (stamp, stamp))
    return file


def test_every_name_and_key_finds_what_the_whole_catalogue_finds(files_read):
    whole = Catalogue.load()
    find_one("gpt2")
    files_read.clear()
    for entry in whole.entries:
        assert find_one(entry.key) == entry
    assert len(files_read) < 2 * len(whole.entries)


def test_a_key_that_no_file_lists_reads_none(files_read):
    find_one("d64-bf16-causal")
    assert len(files_read) > 30
    files_read.clear()
    assert find_one("d200-bf16-causal").spec.path == "<key>"
    assert files_read == []


def test_changed_and_new_files_are_read(tmp_path, files_read):
    folder = tmp_path / "specs"
    write(folder, "mine.yaml", MINE)
    assert find_one("mine", [folder]).key == "d80-bf16-causal"
    assert find_one("mine", [folder]).key == "d80-bf16-causal"
    write(folder, "mine.yaml", MINE.replace("80", "88"), age_seconds=50)  # of the same size
    assert find_one("mine", [folder]).key == "d88-bf16-causal"
    write(folder, "other.yaml", MINE.replace("mine", "other").replace("80", "96"))
    assert find_one("other", [folder]).key == "d96-bf16-causal"
    files_read.clear()
    find_one("other", [folder])
    assert files_read == ["other.yaml"]


def test_a_file_that_may_still_change_is_not_remembered(tmp_path, files_read):
    folder = tmp_path / "specs"
    find_one("gpt2")
    for size in (80, 88, 96):
        write(folder, "mine.yaml", MINE.replace("80", str(size)), age_seconds=0)
        files_read.clear()
        assert find_one(f"d{size}-bf16-causal", [folder]).spec.name == "mine"
        assert "mine.yaml" in files_read


def test_a_users_spec_takes_the_place_of_a_shipped_one(tmp_path):
    write(tmp_path / "specs", "mine.yaml", MINE.replace("80", "128") + "passes: forward\n")
    for _ in range(2):
        assert find_one("d128-bf16-causal", [tmp_path / "specs"]).spec.name == "mine"
    assert find_one("d128-bf16-causal").spec.name == "llama"


def test_a_wrong_spec_is_named_each_time(tmp_path):
    bad = write(tmp_path / "specs", "z.yaml", MINE + "causel: true\n")
    for _ in range(2):
        with pytest.raises(SpecError) as caught:
            find_one("gpt2", [tmp_path / "specs"])
        assert str(caught.value).startswith(f"{bad}:5:1: unknown field 'causel'")


def test_an_unknown_name_gets_the_nearest_of_all():
    for _ in range(2):
        with pytest.raises(SpecError, match=r"Did you mean gpt2"):
            find_one("gpt3")


@pytest.mark.parametrize("content", [b"", b"{", b'{"flashgen": "0.0.0", "files": {}}', b"\xff"])
def test_a_torn_or_old_index_is_made_again(content, files_read):
    find_one("gpt2")
    path = spec_index._path()
    path.write_bytes(content)
    files_read.clear()
    assert find_one("gpt2").key == "d64-fp16-causal-dropout"
    assert len(files_read) > 30
    assert len(spec_index.SpecIndex.read().files) > 30


def test_a_cache_that_can_not_be_written_serves(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert find_one("gpt2").key == "d64-fp16-causal-dropout"


def test_a_key_that_no_spec_adds_to_is_found_without_reading(tmp_path, files_read):
    find_one("gpt2")
    files_read.clear()
    assert find_for_load("d128-bf16-causal").spec.path == "<key>"
    assert files_read == []
    folder = tmp_path / "specs"
    write(folder, "a.yaml", MINE.replace("80", "128") + "passes: forward\n")
    for _ in range(2):
        entry = find_for_load("d128-bf16-causal", [folder])
        assert (entry.spec.name, entry.spec.passes) == ("mine", ("forward",))
    write(folder, "b.yaml", MINE.replace("80", "128").replace("mine", "later"))
    for path in ("b.yaml", "<key>"):  # the last one counts, and says nothing
        entry = find_for_load("d128-bf16-causal", [folder])
        assert entry.spec.path.endswith(path) and entry.spec.passes == ("forward", "backward")


def test_names_and_bodies_are_loaded_as_they_are_found():
    whole = Catalogue.load()
    find_one("gpt2")
    for entry in whole.entries:
        found = find_for_load(entry.key)
        assert found.variant == entry.variant and found.spec.passes == entry.spec.passes
        assert found.spec.tuning == entry.spec.tuning
    assert find_for_load("gpt2") == find_one("gpt2")
