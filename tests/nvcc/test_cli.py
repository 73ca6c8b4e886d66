"""The command line with nvcc: a GPU's kernel is built, explained and exported without a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flashgen.cli.app import app
from flashgen.runtime import knobs
from flashgen.runtime.toolchain import find_nvcc
from flashgen.runtime.unit import binding_root

pytestmark = pytest.mark.nvcc
SPEC = "name: one-pass\nhead_dim: 64\ndtype: fp16\npasses: [forward]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("une clé é")
    (folder / "spec.yaml").write_text(SPEC)
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    for knob in knobs.KNOBS:
        monkeypatch.delenv(knob.name, raising=False)
    monkeypatch.setenv(knobs.CACHE_DIR.name, str(folder / "cache"))

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [*map(str, arguments)], prog_name="flashgen")

    return invoke


def test_build_and_show_report_what_ptxas_said(run, folder):
    spec = folder / "spec.yaml"
    built = run("build", spec, "--arch", "sm80", "--strict", "--json")
    assert built.exit_code == 0, built.output
    (artifact,) = json.loads(built.stdout)
    (kernel,) = artifact["resources"]
    assert 0 < kernel["registers"] <= 255 and kernel["spill_store_bytes"] == 0
    shown = run("show", spec, "--arch", "sm80").output
    assert f"{kernel['registers']}" in shown and "buffer" in shown and "of 166912 bytes" in shown


def test_fallback_to_an_earlier_family_is_visible(run, folder):
    both = folder / "both.yaml"
    both.write_text(
        "name: both\nhead_dim: 128\ndtype: bf16\ncausal: true\n"
        "captures: {doc: {dims: [batch, seqlen_k], dtype: int32}}\n"
        "mask: 'doc[b, q_idx] == doc[b, kv_idx]'\n"
    )
    shown = run("show", both, "--arch", "sm90").output
    assert "sm90 is the family made for sm90" in shown
    assert "fallback: family sm90 has no backward for" in shown
    asked = run("show", folder / "spec.yaml", "--arch", "sm90", "--family", "sm80").output
    assert "asked for" in asked


def test_an_exported_source_compiles_alone(run, folder, tmp_path):
    result = run("generate", folder / "spec.yaml", "--arch", "sm80", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    command = [find_nvcc().path, "-std=c++17", "-arch=sm_80", "-c", "fwd_d64_fp16_sm80.cu"]
    command += ["-I.", f"-I{binding_root() / 'include'}", "-o", "alone.o"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
