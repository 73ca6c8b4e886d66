"""The cache: what is a hit, what is a miss, what is removed; with made-up binaries."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import time

import pytest

from flashgen.generator.errors import CacheError
from flashgen.runtime import cache_ops
from flashgen.runtime.cache import POINTERS, Cache
from flashgen.runtime.compile_unit import _file_records
from flashgen.runtime.manifest import MANIFEST_NAME, Manifest, encode
from flashgen.runtime.unit import prepare, source_fingerprint

COMPILER = "c" * 64
OTHER_COMPILER = "d" * 64


def publish(cache, unit, compiler=COMPILER, content=b"binary"):
    """A binary of ``unit`` that nobody compiled."""
    directory = cache.new_directory(unit, compiler)
    (directory / unit.library_name).write_bytes(content)
    (directory / unit.rendered.name).write_text(unit.rendered.text)
    manifest = Manifest(
        flashgen="0",
        key=unit.plan.variant.key,
        pass_name=unit.plan.pass_name,
        target=unit.plan.target.name,
        family=unit.plan.family,
        name=unit.plan.name,
        library=unit.library_name,
        source=unit.rendered.name,
        source_fingerprint=unit.source_fingerprint,
        compiler_fingerprint=compiler,
        compilers=(),
        binding_abi="",
        plan=unit.plan.describe(),
        smem_bytes=0,
        flags=(),
        command="",
        resources=(),
        warnings=(),
        built_at="",
        build_seconds=0.0,
        files=_file_records(directory),
    )
    return cache.publish(unit, directory, manifest)


@pytest.fixture
def unit(request_for):
    return prepare(request_for())


@pytest.fixture
def artifact(cache, unit):
    return publish(cache, unit)


def pointer_of(cache):
    (path,) = cache.root.glob(f"{POINTERS}/**/*.json")
    return path


def age(path, seconds):
    """Make everything at ``path`` look as if written ``seconds`` ago."""
    then = time.time() - seconds
    for part in (path, *path.rglob("*")):
        os.utime(part, (then, then))


def test_what_was_published_is_found(cache, unit, artifact):
    assert cache.lookup(unit, COMPILER) == artifact
    assert artifact.directory.parent == cache.root / "cpu"
    assert artifact.library.read_bytes() == b"binary"


def test_a_second_build_has_another_path(cache, unit, artifact):
    again = publish(cache, unit, content=b"new")
    assert again.directory != artifact.directory
    assert cache.lookup(unit, COMPILER) == again


def test_other_compiler_or_source_is_a_miss(cache, unit, artifact):
    assert cache.lookup(unit, OTHER_COMPILER) is None
    changed = dataclasses.replace(unit, source_fingerprint="e" * 64)
    assert cache.lookup(changed, COMPILER) is None


def test_without_a_compiler_any_compilers_binary_will_do(cache, unit, artifact):
    assert cache.lookup(unit, None) == artifact
    changed = dataclasses.replace(unit, source_fingerprint="e" * 64)
    assert cache.lookup(changed, None) is None


def truncate(artifact, pointer):
    artifact.library.write_bytes(artifact.library.read_bytes()[:3])


def alter(artifact, pointer):
    artifact.library.write_bytes(b"BINARY")


def delete_library(artifact, pointer):
    artifact.library.unlink()


def delete_manifest(artifact, pointer):
    (artifact.directory / MANIFEST_NAME).unlink()


def alter_manifest(artifact, pointer):
    (artifact.directory / MANIFEST_NAME).write_bytes(encode(artifact.manifest)[:-20])


def delete_directory(artifact, pointer):
    shutil.rmtree(artifact.directory)


def empty_pointer(artifact, pointer):
    pointer.write_bytes(b"")


def binary_pointer(artifact, pointer):
    pointer.write_bytes(b"\xff\xfe{")


@pytest.mark.parametrize(
    "harm",
    [
        truncate,
        alter,
        delete_library,
        delete_manifest,
        alter_manifest,
        delete_directory,
        empty_pointer,
        binary_pointer,
    ],
)
def test_a_corrupt_entry_is_a_miss_that_verify_names(cache, unit, artifact, harm):
    assert cache_ops.verify(cache.root) == ()
    pointer = pointer_of(cache)
    harm(artifact, pointer)
    assert cache.lookup(unit, COMPILER) is None
    assert cache.lookup(unit, None) is None
    (fault,) = cache_ops.verify(cache.root)
    assert fault.pointer == pointer


def test_touching_files_changes_nothing(cache, unit, artifact):
    age(cache.root, 10_000)
    assert cache.lookup(unit, COMPILER) == artifact


def test_prebuilt_serves_whatever_the_compiler(cache_root, unit, tmp_path):
    bundle = publish(Cache(tmp_path / "bundle"), unit)
    cache = Cache(cache_root, (tmp_path / "bundle",))
    assert cache.lookup(unit, OTHER_COMPILER) == bundle
    assert cache.lookup(unit, None) == bundle
    rebuilt = publish(cache, unit, OTHER_COMPILER)
    assert cache.lookup(unit, OTHER_COMPILER) == rebuilt


def test_a_bundle_that_was_moved_still_serves(cache, unit, artifact, tmp_path):
    shutil.copytree(cache.root, tmp_path / "cöpied bundle")
    found = Cache(tmp_path / "cöpied bundle").lookup(unit, COMPILER)
    assert found is not None
    assert found.library.read_bytes() == b"binary"


def test_home_unset(monkeypatch, unit, tmp_path):
    for name in ("FLASHGEN_CACHE_DIR", "FLASHGEN_PREBUILT", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CacheError, match="FLASHGEN_CACHE_DIR"):
        Cache.default()
    bundle = publish(Cache(tmp_path / "bundle"), unit)
    monkeypatch.setenv("FLASHGEN_PREBUILT", str(tmp_path / "bundle"))
    cache = Cache.default()
    assert cache.lookup(unit, COMPILER) == bundle
    with pytest.raises(CacheError, match="FLASHGEN_CACHE_DIR"):
        cache.new_directory(unit, COMPILER)


READ_ONLY = """
import ctypes, sys
# root writes anything: give up the right to override permissions
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
assert ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) == 0
from pathlib import Path
from flashgen.generator.arch import parse_target
from flashgen.generator.errors import CacheError
from flashgen.generator.variant import parse_key
from flashgen.runtime.cache import Cache
from flashgen.runtime.unit import BuildRequest, prepare
cache = Cache(Path(sys.argv[1]))
unit = prepare(BuildRequest(parse_key("d8-fp32"), "forward", parse_target("cpu")),
               cache.template_cache)
print(cache.lookup(unit, sys.argv[2]).library)
for act in (lambda: cache.lock(unit).acquire(), lambda: cache.new_directory(unit, sys.argv[2])):
    try:
        act()
    except (CacheError, OSError) as error:
        print(error)
"""


def test_read_only_cache_serves_and_says_what_to_set(cache, artifact):
    cache_ops.gc(cache.root)
    everything = [cache.root, *cache.root.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(cache.root), COMPILER],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for path in everything:
            path.chmod(0o755)
    library, *errors = done.stdout.splitlines()
    assert library == str(artifact.library)
    assert len(errors) == 2
    for error in errors:
        assert str(cache.root) in error
        assert "Permission denied" in error
        assert "FLASHGEN_CACHE_DIR" in error


def test_entries_and_usage(cache, unit, artifact, request_for):
    publish(cache, prepare(request_for("d16-fp32")), content=b"x" * 5000)
    keys = [e.artifact.manifest.key for e in cache_ops.entries(cache.root)]
    assert keys == ["d16-fp32", "d8-fp32"]
    usage = cache_ops.usage(cache.root)
    assert [(t.target, t.entries) for t in usage.targets] == [("cpu", 2)]
    assert usage.size_bytes == sum(p.stat().st_size for p in cache.root.rglob("*") if p.is_file())
    assert usage.size_bytes > 5000


def test_an_empty_cache(tmp_path):
    root = tmp_path / "none"
    assert cache_ops.entries(root) == ()
    assert cache_ops.usage(root).size_bytes == 0
    assert cache_ops.verify(root) == ()
    assert cache_ops.gc(root).paths == ()
    assert cache_ops.remove(root, "d8-fp32").paths == ()


def test_remove_takes_one_key(cache, unit, artifact, request_for):
    other = prepare(request_for("d16-fp32"))
    kept = publish(cache, other)
    assert cache_ops.remove(cache.root, "d8-fp32", target="sm80").paths == ()
    removed = cache_ops.remove(cache.root, "d8-fp32")
    assert artifact.directory in removed.paths
    assert removed.size_bytes > 0
    assert not artifact.directory.exists()
    assert cache.lookup(unit, COMPILER) is None
    assert cache.lookup(other, COMPILER) == kept


def test_gc_drops_replaced_and_unfinished_builds_once_they_are_old(cache, unit, artifact):
    replaced, artifact = artifact, publish(cache, unit)
    unfinished = cache.new_directory(unit, COMPILER)
    batch = cache.root / "batches" / "abc"
    batch.mkdir(parents=True)
    foreign = cache.root / "notes"
    foreign.mkdir()
    assert cache_ops.gc(cache.root).paths == ()  # all of it may be in use
    age(cache.root, cache_ops.IN_USE_SECONDS + 60)
    removed = cache_ops.gc(cache.root)
    assert set(removed.paths) == {replaced.directory, unfinished, batch}
    assert foreign.exists()
    assert cache.lookup(unit, COMPILER) == artifact


def test_gc_drops_dead_pointers(cache, unit, artifact):
    pointer = pointer_of(cache)
    (artifact.directory / MANIFEST_NAME).unlink()
    assert cache_ops.gc(cache.root).paths == (pointer,)
    age(cache.root, cache_ops.IN_USE_SECONDS + 60)
    assert cache_ops.gc(cache.root).paths == (artifact.directory,)


def test_gc_by_age(cache, unit, artifact, request_for):
    other = prepare(request_for("d16-fp32"))
    kept = publish(cache, other)
    age(artifact.directory, 1000)
    cache_ops.gc(cache.root, older_than_seconds=500)
    assert not artifact.directory.exists()
    assert cache.lookup(unit, COMPILER) is None
    assert cache.lookup(other, COMPILER) == kept


@pytest.mark.parametrize(
    "change",
    [
        lambda plan, text: (plan, dataclasses.replace(text, text=text.text + "\n")),
        lambda plan, text: (plan, dataclasses.replace(text, headers=(*text.headers, ("a", "b")))),
        lambda plan, text: (dataclasses.replace(plan, tile_n=plan.tile_n * 2), text),
    ],
    ids=["source", "header", "plan"],
)
def test_the_fingerprint_covers(unit, change):
    assert source_fingerprint(*change(unit.plan, unit.rendered)) != unit.source_fingerprint
    assert source_fingerprint(unit.plan, unit.rendered) == unit.source_fingerprint


def test_the_fingerprint_covers_flags_and_binding(unit, monkeypatch):
    seen = {unit.source_fingerprint}
    for name, value in (
        ("binding_abi", lambda: "tvm-ffi 9.9"),
        ("build_flags", lambda plan: ("-O1",)),
        ("_isa", lambda flags: "riscv"),
        ("VERSION", "9.9.9"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"flashgen.runtime.unit.{name}", value)
            seen.add(source_fingerprint(unit.plan, unit.rendered))
    assert len(seen) == 5
