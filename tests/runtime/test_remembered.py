"""A warm lookup prepares nothing; what decides a binary and has changed is prepared anew."""

from __future__ import annotations

import os
import time

import pytest

from flashgen.runtime import build as build_module
from flashgen.runtime import remembered
from flashgen.runtime.build import build, find


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder in the place of the generator and the templates; its file is an old one."""
    folder = tmp_path / "sources"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "forward.cu.j2").write_text("old")
    monkeypatch.setattr(remembered, "_folders", lambda: (folder,))
    later(monkeypatch)
    return folder / "below" / "forward.cu.j2"


def later(monkeypatch):
    """What has been written so far is old to a process that begins now."""
    monkeypatch.setattr(remembered, "IMPORTED_NS", time.time_ns() + 60_000_000_000)


@pytest.fixture
def prepared(monkeypatch):
    """The requests that are prepared."""
    seen = []
    original = build_module.prepare

    def preparing(request, *more):
        seen.append(request)
        return original(request, *more)

    monkeypatch.setattr(build_module, "prepare", preparing)
    return seen


@pytest.fixture
def found(cache, compiler, sources, request_for, prepared):
    """A request that was built, and looked up by a process that remembers it."""
    request = request_for()
    (artifact,) = build([request], cache=cache)
    assert find(request, cache=cache) == artifact
    prepared.clear()
    return request, artifact


def test_a_warm_lookup_prepares_nothing(cache, found, prepared, monkeypatch):
    request, artifact = found
    monkeypatch.setattr("flashgen.runtime.cache.file_fault", lambda *_: "not to be asked")
    assert find(request, cache=cache) == artifact
    assert build([request, request], cache=cache) == [artifact, artifact]
    assert prepared == []


@pytest.mark.parametrize("how", ["content", "same size and time", "new file", "gone"])
def test_a_changed_source_is_prepared_anew(cache, found, prepared, sources, how):
    request, artifact = found
    status = sources.stat()
    if how == "new file":
        (sources.parent / "another.cuh").write_text("")
    elif how == "gone":
        sources.unlink()
    else:
        sources.write_text("new" if "same" in how else "newer")
    if how == "same size and time":  # as a copy that keeps times: the change's own time tells
        os.utime(sources, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert find(request, cache=cache) == artifact  # its real templates are as they were
    assert prepared == [request]


def test_a_source_as_young_as_the_process_is_not_relied_on(cache, found, prepared, monkeypatch):
    request, _ = found
    monkeypatch.setattr(remembered, "IMPORTED_NS", time.time_ns())
    assert remembered.sources_state() == ""
    find(request, cache=cache)
    assert prepared == [request]


def test_another_request_is_prepared(cache, found, prepared, request_for):
    assert find(request_for("d16-fp32"), cache=cache) is None
    assert find(request_for(pins=(("tile_n", 32),)), cache=cache) is None
    assert len(prepared) == 2


@pytest.mark.parametrize("harm", ["truncated", "altered", "gone", "manifest", "pointer"])
def test_harm_is_a_miss(cache, found, harm):
    request, artifact = found
    library = artifact.library
    if harm == "gone":
        library.unlink()
    elif harm == "manifest":
        (artifact.directory / "manifest.json").write_text("{}")
    elif harm == "pointer":
        for pointer in (cache.root / "pointers").rglob("*.json"):
            pointer.unlink()
    else:
        content = library.read_bytes()
        library.write_bytes(content[:-1] if harm == "truncated" else content[:-1] + b"?")
    assert find(request, cache=cache) is None


def test_a_rebuilt_binary_and_another_compiler(cache, compiler, found):
    request, artifact = found
    (again,) = build([request], cache=cache, force=True)
    assert again != artifact and find(request, cache=cache) == again
    compiler.write(version="13.0.0")
    assert find(request, cache=cache) is None


def test_a_torn_record_is_made_again(cache, found, prepared):
    request, artifact = found
    (record,) = (cache.root / "units").iterdir()
    record.write_text("{")
    assert find(request, cache=cache) == artifact and prepared == [request]
    assert find(request, cache=cache) == artifact and prepared == [request]
