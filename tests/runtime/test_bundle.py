"""Bundles: written whole, moved about, found with no compiler, refused with a reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from flashgen.generator.errors import CacheError
from flashgen.runtime import bundle, cache_ops
from flashgen.runtime.build import build, find
from flashgen.runtime.bundle import BUNDLE_NAME, glibc_version, needed_glibc, read_bundle
from flashgen.runtime.bundling import Packed, write_bundle
from flashgen.runtime.cache import Cache
from flashgen.runtime.manifest import encode

ROOT = Path(__file__).resolve().parents[2]
PINS = (("tile_n", 32),)


@pytest.fixture
def pack(cache, compiler, request_for, tmp_path):
    """Builds (a stub, unless the compiler is made real) and bundles kernels."""

    def make(*requests, folder=tmp_path / "bündle", specs=()):
        wanted = requests or (request_for(),)
        artifacts = build(wanted, cache=cache)
        kernels = [Packed(*pair) for pair in zip(wanted, artifacts, strict=True)]
        write_bundle(folder, kernels, specs)
        return folder

    return make


@pytest.fixture
def no_compiler(monkeypatch):
    def remove():
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CUDA_HOME", raising=False)
        monkeypatch.setattr("flashgen.runtime.toolchain.pip_cuda_roots", lambda: ())

    return remove


def rewrite(folder, **changes):
    old = msgspec.json.decode((folder / BUNDLE_NAME).read_bytes(), type=bundle.Bundle)
    (folder / BUNDLE_NAME).write_bytes(encode(msgspec.structs.replace(old, **changes)))


def only(folder, tmp_path):
    """A cache that has nothing but the bundle."""
    return Cache(tmp_path / "empty", (folder,))


LOAD = """
import sys, torch, flashgen
kernel = flashgen.load(sys.argv[1], "cpu")
q, k, v = torch.randn(3, 2, 33, 2, 16, dtype=torch.float64).unbind()
q.requires_grad_()
out = kernel(q, k, v)
hidden = torch.ones(33, 33).triu(1).bool()
scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4
if kernel.variant.body:
    scores = scores * 2
expected = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
given = torch.randn_like(out)
(mine,) = torch.autograd.grad(out, q, given)
(wanted,) = torch.autograd.grad(expected, q, given)
print(float((out - expected).abs().max()), float((mine - wanted).abs().max()))
print(kernel._passes.popitem()[1].artifact.directory)
"""
SPEC = "name: doubled\nhead_dim: 16\ndtype: fp64\ncausal: true\nscore: '2 * score'\n"


def load_without_compilers(name, folder, home):
    """What LOAD prints in a process that has the bundle, an empty cache and no PATH."""
    environment = {"FLASHGEN_PREBUILT": str(folder), "FLASHGEN_CACHE_DIR": str(home / "none")}
    environment |= {"PATH": "", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, name], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    errors, directory = done.stdout.splitlines()
    assert max(map(float, errors.split())) < 1e-12
    assert Path(directory).is_relative_to(folder)
    assert not (home / "none" / "cpu").exists()


def test_a_moved_bundle_serves_a_machine_without_compilers(compiler, cache_root, tmp_path):
    from click.testing import CliRunner

    from flashgen.cli.app import app

    compiler.write_real()
    spec = tmp_path / "mine.yaml"
    spec.write_text(SPEC)
    made = tmp_path / "made here"
    for name in ("d16-fp64-causal", str(spec)):
        done = CliRunner().invoke(app, ["bundle", name, "--arch", "cpu", "-o", str(made)])
        assert done.exit_code == 0, done.output
    shutil.rmtree(cache_root)
    spec.unlink()
    moved = tmp_path / "elsewhere" / "kernels ü"
    moved.parent.mkdir()
    made.rename(moved)
    moved_files = {p: p.read_bytes() for p in moved.rglob("*") if p.is_file()}
    load_without_compilers("d16-fp64-causal", moved, tmp_path)
    load_without_compilers("doubled", moved, tmp_path)
    assert {p: p.read_bytes() for p in moved.rglob("*") if p.is_file()} == moved_files


def test_several_targets_and_calls_make_one_bundle(pack, request_for, tmp_path):
    pack()
    folder = pack(request_for(pass_name="backward"), request_for(key="d16-fp32"))
    first = {entry.identity: entry.pointer for entry in read_bundle(folder).entries}
    assert len(first) == 3
    pack()
    second = {entry.identity: entry.pointer for entry in read_bundle(folder).entries}
    assert [n for n in first if first[n] != second[n]] == [("cpu", "d8-fp32", "forward", "cpu")]
    directories = {p.relative_to(folder).as_posix() for p in (folder / "cpu").iterdir()}
    assert directories == {pointer.directory for pointer in second.values()}
    assert cache_ops.verify(folder) == ()
    assert len(cache_ops.entries(folder)) == 3
    names = {p.name for p in folder.rglob("*") if p.is_file()}
    assert not any(name.endswith((".log", ".d", ".tmp", ".lock")) for name in names)


def test_a_bundle_with_another_tuning_serves(pack, request_for, tmp_path, no_compiler):
    folder = pack(request_for(pins=PINS))
    no_compiler()
    found = find(request_for(), cache=only(folder, tmp_path))
    assert found is not None and found.manifest.plan["tile_n"] == 32


def test_the_exact_plan_comes_before_another_tuning(pack, request_for, tmp_path):
    folder = pack(request_for(pins=PINS))
    other = pack(request_for(), folder=tmp_path / "other")
    cache = Cache(tmp_path / "empty", (folder, other))
    assert find(request_for(pins=PINS), cache=cache).manifest.plan["tile_n"] == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flashgen": "0.0.1"}, r"kernels of flashgen [\d.]+, got those of flashgen 0.0.1"),
        ({"layout": 99}, r"got those of flashgen [\d.]+ \(layout 99\)"),
        ({"binding_abi": "tvm-ffi 0.0"}, r"for the binding tvm-ffi [\d.]+, got those for .* 0.0"),
        ({"machine": "z80"}, r"expected kernels for \w+ hosts, got those for z80"),
        ({"glibc": (998, 1)}, r"kernels for glibc [\d.]+ or older, got those that need 998.1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    pack, request_for, tmp_path, no_compiler, changes, message, caplog
):
    folder = pack()
    rewrite(folder, **changes)
    cache = only(folder, tmp_path)
    assert find(request_for(), cache=cache) is None
    build([request_for()], cache=cache)  # there is a compiler: built, and told why
    (told,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert told.endswith("(It is built now.)")
    no_compiler()
    with pytest.raises(CacheError, match=message) as caught:
        build([request_for()], cache=only(folder, tmp_path / "x"))
    assert str(folder) in str(caught.value) and "g++" in str(caught.value)


def test_another_target_pass_or_key_is_refused(pack, request_for, tmp_path, no_compiler):
    folder = pack(request_for(key="d8-fp16"))
    no_compiler()
    cache = only(folder, tmp_path)
    with pytest.raises(CacheError, match="got forward cpu alone. Add it .* --arch sm80"):
        build([request_for(key="d8-fp16", target="sm80")], cache=cache)
    with pytest.raises(CacheError, match="got forward cpu alone"):
        build([request_for(key="d8-fp16", pass_name="backward")], cache=cache)
    with pytest.raises(CacheError, match="got none of its key among 1 kernels"):
        build([request_for(key="d16-fp32")], cache=cache)


def test_kernels_of_other_templates_are_refused(pack, request_for, tmp_path, no_compiler):
    folder = pack()
    (entry,) = read_bundle(folder).entries
    pointer = msgspec.structs.replace(entry.pointer, source_fingerprint="0" * 64)
    rewrite(folder, entries=(msgspec.structs.replace(entry, pointer=pointer),))
    no_compiler()
    with pytest.raises(CacheError, match="of this flashgen's own templates"):
        build([request_for()], cache=only(folder, tmp_path))


def test_a_damaged_library_is_refused(pack, request_for, tmp_path, no_compiler):
    folder = pack()
    (library,) = folder.glob("cpu/*/*.so")
    os.truncate(library, 2)
    no_compiler()
    with pytest.raises(CacheError, match=r"got .*\.so: expected 5 bytes, got 2. Copy"):
        build([request_for()], cache=only(folder, tmp_path))
    assert len(cache_ops.verify(folder)) == 1


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"layout": 1}', b"\xff"])
def test_no_bundle_or_a_torn_one(tmp_path, content, request_for, compiler, no_compiler):
    no_compiler()
    folder = tmp_path / "torn"
    folder.mkdir()
    if content is not None:
        (folder / BUNDLE_NAME).write_bytes(content)
    with pytest.raises(CacheError, match="prebuilt .*torn"):
        read_bundle(folder)
    missing = tmp_path / "nowhere"
    with pytest.raises(CacheError, match="nowhere: expected a folder made by"):
        build([request_for()], cache=only(missing, tmp_path))


def test_other_folders_are_left_alone(pack, tmp_path):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.png").write_bytes(b"cat")
    with pytest.raises(CacheError, match="photos: expected a new or empty folder or a bundle"):
        pack(folder=other)
    assert [p.name for p in other.iterdir()] == ["cat.png"]


def test_an_interrupted_write_changes_nothing(pack, request_for, tmp_path, monkeypatch):
    folder = pack()
    before = read_bundle(folder)

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("flashgen.runtime.bundling.shutil.copyfile", full)
        with pytest.raises(CacheError, match="No space left on device"):
            pack(request_for(pass_name="backward"))
    assert read_bundle(folder) == before
    assert find(request_for(), cache=only(folder, tmp_path)) is not None
    pack(request_for(pass_name="backward"))  # which also clears what was left
    assert len([*(folder / "cpu").iterdir()]) == 2


def test_kernels_of_another_version_are_dropped(pack, request_for):
    folder = pack()
    rewrite(folder, flashgen="0.0.1")
    pack(request_for(pass_name="backward"))
    (entry,) = read_bundle(folder).entries
    assert entry.pass_name == "backward"


def test_glibc_versions():
    assert needed_glibc(b"..GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.17\0GLIBCXX_3.4.30") == (2, 34)
    assert needed_glibc(b"none") == (0, 0)
    assert (2, 17) <= glibc_version() < (4, 0)
