"""`flashgen bundle` and `flashgen export`, and what other commands say of a bundle."""

from __future__ import annotations

import json
import re

import pytest

from flashgen.runtime import knobs

SPEC = "name: mine\nhead_dim: 16\ndtype: fp32\npasses: [forward]\nscore: '2 * score'\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the bundle of these tests is made, once."""
    return tmp_path_factory.mktemp("shipping")


@pytest.fixture
def bundle(run, folder):
    made = folder / "kernels"
    if not made.exists():
        (folder / "mine.yaml").write_text(SPEC)
        done = run("bundle", folder / "mine.yaml", "--arch", "cpu", "-o", made)
        assert done.exit_code == 0, done.output
        assert "1 kernels for cpu" in done.output
        assert f"FLASHGEN_PREBUILT={made}" in done.output
    return made


def test_what_a_bundle_has(run, bundle, monkeypatch, tmp_path):
    listed = json.loads(run("cache", "ls", bundle, "--json").output)
    assert [(e["pass"], e["target"]) for e in listed] == [("forward", "cpu")]
    assert run("cache", "verify", bundle).output == f"1 kernels in {bundle}, 0 faults\n"
    done = run("cache", "ls", cache=tmp_path)
    assert done.output.splitlines()[-1] == f"0 kernels in {tmp_path}"
    monkeypatch.setenv(knobs.PREBUILT.name, str(bundle))
    lines = run("cache", "ls", cache=tmp_path).output.splitlines()
    assert lines[-1] == f"1 kernels in {bundle}"
    assert f"prebuilt        {bundle}: 1 kernels for cpu" in run("doctor").output
    (tmp_path / "bundle.json").write_text('{"layout": 1, "flashgen": "0.0.1"}')
    monkeypatch.setenv(knobs.PREBUILT.name, str(tmp_path))
    done = run("cache", "ls")
    assert done.exit_code == 0 and "got those of flashgen 0.0.1" in done.output
    done = run("doctor")
    assert done.exit_code == 1 and "got those of flashgen 0.0.1" in done.output
    assert run("cache", "ls", tmp_path).exit_code == 3


def test_a_bundle_in_a_folder_of_other_things(run, folder, bundle):
    done = run("bundle", folder / "mine.yaml", "--arch", "cpu", "-o", folder)
    assert done.exit_code == 3
    assert re.search("expected a new or empty folder or a bundle", done.output)
    assert run("bundle", folder / "mine.yaml", "--arch", "cpu").exit_code == 2


def test_export_writes_two_files(run, folder, bundle, tmp_path):
    done = run("export", "d64-fp16-causal", "--arch", "sm80", "-o", tmp_path / "new" / "attn")
    assert done.exit_code == 0, done.output
    stem = tmp_path / "new" / "attn" / "d64_fp16_causal_sm80"
    assert done.output.split() == [f"{stem}.h", f"{stem}.cu"]
    assert "backward_pass" in stem.with_suffix(".cu").read_text()
    done = run("export", folder / "mine.yaml", "--arch", "cpu", "--name", "mine", "-o", tmp_path)
    assert "mine_backward" not in (tmp_path / "mine.h").read_text()  # the spec's passes
    assert (tmp_path / "mine.cpp").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("d64-fp16", "--arch", "sm80", "--arch", "cpu"), 2, "Name one key and one --arch"),
        (("d64-fp16", "--arch", "sm80", "--name", "a-b"), 2, "expected a name of C, got 'a-b'"),
        (("d64-fp32", "--arch", "sm80"), 2, "dtype fp32 runs on"),
        (("d64-fp61", "--arch", "sm80"), 2, "Did you mean"),
    ],
)
def test_what_export_refuses(run, tmp_path, arguments, code, message):
    done = run("export", *arguments, "-o", tmp_path / "out")
    assert (done.exit_code, (tmp_path / "out").exists()) == (code, False), done.output
    assert message in done.output
