"""Every mistake is one line that says what to do, with the exit code of its kind."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from flashgen.cli import exits
from flashgen.cli.app import COMMANDS, app
from flashgen.generator import errors

KINDS = [
    (errors.SpecError, exits.BAD_INPUT),
    (errors.TargetError, exits.BAD_INPUT),
    (errors.PlanError, exits.BAD_INPUT),
    (errors.ArgumentError, exits.BAD_INPUT),
    (errors.BenchError, exits.CHECK_FAILED),
    (errors.ToolchainError, exits.BUILD_FAILED),
    (errors.CompileError, exits.BUILD_FAILED),
    (errors.CacheError, exits.BUILD_FAILED),
]


@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_exit_codes(kind, code):
    assert exits.exit_code(kind("x")) == code


def test_every_error_kind_is_listed():
    kinds = set(errors.FlashgenError.__subclasses__())
    assert {kind for kind, _ in KINDS} == kinds


def test_a_variable_of_another_type_is_bad_input(run, monkeypatch):
    monkeypatch.setenv("FLASHGEN_MAX_JOBS", "zero")
    result = run("build", "d8-fp64", "--arch", "cpu")
    assert result.exit_code == exits.BAD_INPUT
    assert "FLASHGEN_MAX_JOBS: expected" in result.output and "'zero'" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "d128-bf17"], ["bf17", "bf16"]),
        (["show", "d100-bf16", "--arch", "cpu"], ["head_dim", "multiple of 8", "104"]),
        (["show", "nothing-like-it", "--arch", "cpu"], ["nothing-like-it"]),
        (["build", "d64-bf16", "--arch", "sm81"], ["sm81", "sm80"]),
        (["build", "d64-bf16", "--arch", "sm70"], ["sm70", "sm75", "CUDA 13"]),
        (["build", "d64-fp32", "--arch", "sm80"], ["fp32", "cpu only"]),
        (["build", "d64-bf16", "--arch", "cpu", "--family", "sm80"], ["sm80", "cpu"]),
        (["list", "--specs", "/does/not/exist"], ["/does/not/exist"]),
        (["build", "absent.yaml", "--arch", "cpu"], ["absent.yaml"]),
        (["build", "--jobs", "0"], ["--jobs", "x>=1"]),
        (["generate", "d64-bf16", "--arch", "cpu"], ["-o"]),
        (["generate", "--check", "d64-bf16"], ["--check"]),
        (["cache", "rm"], ["--all"]),
        (["verify", "d16-fp32", "--device", "gpu"], ["device", "'gpu'"]),
        (["cache", "gc", "--older-than", "soon"], ["30d"]),
        (["nonsense"], ["nonsense"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(run, arguments, words):
    result = run(*arguments)
    assert result.exit_code == exits.BAD_INPUT, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "d64-bf16", "-o", "FILE/below"], ["FILE", "expected a place", "Not a dir"]),
        (["explain", "d64-bf16", "--seqlen-q", "99999999999999"], ["pairs", "--seqlen-q"]),
        (["explain", "d64-bf16", "--seqlen-q", "1000000"], ["pairs", "1,000,000,000,000"]),
        (["explain", "d64-bf16", "--seqlen-q", "9000", "--tile", "1"], ["tiles", "--tile"]),
        (["verify", "d64-bf16", "--device", "gpu"], ["device: expected cpu", "'gpu'"]),
    ],
)
def test_what_cannot_be_used_is_one_line(run, tmp_path, arguments, words):
    """A path below a file, a call that is too long to look at, a device that is none."""
    occupied = tmp_path / "FILE"
    occupied.write_text("")
    result = run(*(part.replace("FILE", str(occupied)) for part in arguments))
    assert result.exit_code == exits.BAD_INPUT, result.output
    assert result.output.startswith("error: ") and result.output.count("\n") == 1
    assert all(word in result.output for word in words), result.output


def test_a_wrong_spec_names_file_line_and_column(run, spec_dir):
    (spec_dir / "mine.yaml").write_text("head_dim: 64\ndtype: bf16\ncasual: true\n")
    result = run("list", "--specs", spec_dir)
    assert result.exit_code == exits.BAD_INPUT
    assert "mine.yaml:3:1" in result.output and "causal" in result.output
    assert result.output.startswith("error: ") and result.output.count("\n") == 1


def test_missing_compiler_is_exit_3(run, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    result = run("build", "d16-fp32", "--arch", "cpu", cache=tmp_path / "cache")
    assert result.exit_code == exits.BUILD_FAILED, result.output
    assert "no-such-compiler" in result.output and "Traceback" not in result.output


def test_every_failed_unit_is_named(run, monkeypatch, tmp_path):
    """A compiler that fails: one line for each pass, with its log."""
    compiler = tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\ncase $* in *dump*) echo 12.2.0;; *version*) echo g++;; "
        "*) echo 'x.cpp:1: error: no luck'; exit 1;; esac\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    result = run("build", "d16-fp32", "--arch", "cpu", cache=tmp_path / "cache")
    assert result.exit_code == exits.BUILD_FAILED, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and all("no luck" in line and "build.log" in line for line in errors)
    assert "forward" in result.stderr and "backward" in result.stderr


def test_unwritable_cache_is_exit_3(run, tmp_path):
    occupied = tmp_path / "a file"
    occupied.write_text("")
    result = run("build", "d16-fp32", "--arch", "cpu", cache=occupied)
    assert result.exit_code == exits.BUILD_FAILED, result.output
    assert str(occupied) in result.output and "FLASHGEN_CACHE_DIR" in result.output


def test_a_full_disk_is_one_line():
    command = f"{shlex.quote(sys.executable)} -m flashgen list > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr.startswith("error: output: expected a place") and done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_quiet():
    command = f"{shlex.quote(sys.executable)} -m flashgen schema | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.strip() == "{" and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_with_an_example(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"flashgen {name}" in result.output.split("Usage:")[1], "no example"


def test_commands_are_those_of_the_table():
    with app.make_context("flashgen", ["--specs", "."], resilient_parsing=True) as context:
        assert app.list_commands(context) == list(COMMANDS)
        for name in COMMANDS:
            command = app.get_command(context, name)
            assert command is not None and command.name == name
