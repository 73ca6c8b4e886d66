"""Loading: builds what is missing, loads a file once, and never gives stale code."""

from __future__ import annotations

import logging
import os
import threading

import pytest
import torch

from flashgen.generator.errors import CacheError
from flashgen.runtime import loader, log
from flashgen.runtime.build import build
from flashgen.runtime.loader import load_artifact, load_pass


@pytest.fixture(autouse=True)
def real_compiler(compiler):
    compiler.write_real()


def test_a_missing_pass_is_built_with_one_line_and_runs(cache, compiler, request_for, caplog):
    with caplog.at_level(logging.INFO, "flashgen"):
        compiled = load_pass(request_for(), cache=cache)
    assert len(caplog.records) == 1
    assert "d8-fp32 forward for cpu" in caplog.text
    assert str(compiled.artifact.directory) in caplog.text
    assert compiled.workspace(2, 4, 2, 100, 200) >= 0
    q, k, v = torch.randn(3, 1, 5, 2, 8).unbind()
    out, lse = torch.empty(1, 5, 2, 8), torch.empty(1, 2, 5)
    workspace = torch.empty(0, dtype=torch.uint8)
    compiled.function(out, lse, q, k, v, None, workspace, 0.25, 0)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    torch.testing.assert_close(out, torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v))
    torch.testing.assert_close(lse, scores.logsumexp(-1))


def test_a_loaded_pass_is_the_same_object(cache, compiler, request_for):
    first = load_pass(request_for(), cache=cache)
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(load_pass(request_for(), cache=cache)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [s is first for s in seen] == [True] * 4
    assert compiler.compilations == 1


def test_a_rebuilt_pass_is_the_new_one(cache, compiler, request_for):
    old = load_pass(request_for(), cache=cache)
    before = old.workspace(1, 1, 1, 1, 1)
    # the same source and compiler, but code that answers otherwise: only a new mapping shows it
    compiler.write_real(before="sed -i 's/integer(result, .*);/integer(result, 77);/' *.cpp")
    build([request_for()], cache=cache, force=True)
    new = load_pass(request_for(), cache=cache)
    assert new.workspace(1, 1, 1, 1, 1) == 77 != before
    assert old.workspace(1, 1, 1, 1, 1) == before


def test_a_truncated_library_is_rebuilt(cache, compiler, request_for):
    (artifact,) = build([request_for()], cache=cache)
    os.truncate(artifact.library, 1000)
    compiled = load_pass(request_for(), cache=cache)
    assert compiled.artifact.library != artifact.library
    assert compiled.workspace(1, 1, 1, 1, 1) >= 0


def test_missing_and_not_to_be_built(cache, request_for):
    with pytest.raises(CacheError, match="flashgen build d8-fp32 --arch cpu") as caught:
        load_pass(request_for(), cache=cache, build_missing=False)
    assert str(cache.root) in str(caught.value)


def test_a_library_that_is_none(cache, compiler, request_for):
    compiler.write()
    (artifact,) = build([request_for()], cache=cache)
    with pytest.raises(CacheError, match="flashgen build --force d8-fp32"):
        load_artifact(artifact)
    assert artifact.library not in loader._loaded


def test_the_default_cache_and_prebuilt(cache_root, compiler, monkeypatch, request_for, tmp_path):
    built = load_pass(request_for())
    assert built.artifact.directory.is_relative_to(cache_root)
    cache_root.rename(tmp_path / "bundle ü")
    monkeypatch.setenv("FLASHGEN_PREBUILT", str(tmp_path / "bundle ü"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX")
    found = load_pass(request_for())
    assert found.artifact.directory.is_relative_to(tmp_path / "bundle ü")
    assert compiler.compilations == 1


def test_the_log_level_follows_the_variable(monkeypatch):
    monkeypatch.setattr(log, "_NAME", "flashgen-test-log")
    fresh = logging.getLogger("flashgen-test-log")
    fresh.propagate = False  # pytest's own handlers would count
    monkeypatch.setenv("FLASHGEN_LOG", "error")
    assert not log.logger().isEnabledFor(logging.INFO)
    assert fresh.isEnabledFor(logging.ERROR)
    assert len(fresh.handlers) == 1
    log.logger()
    assert len(fresh.handlers) == 1
