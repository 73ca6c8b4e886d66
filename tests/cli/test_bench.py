"""`flashgen bench` from end to end, on tiny problems of the CPU."""

from __future__ import annotations

import json

import pytest

from flashgen.cli import bench, exits
from flashgen.runtime.bench.record import read_record

TINY = ("--tokens", "64", "--hidden", "48", "--seqlens", "32", "--rounds", "1", "--device", "cpu")
SWEEP = ("bench", "--dims", "24", "--dtype", "fp32", "--causal", "yes", *TINY)


def test_bench_prints_and_records(run, tmp_path):
    out = tmp_path / "r.json"
    result = run(*SWEEP, "--peers", "flash,math,eager,cudnn", "--commit", "abc", "-o", out)
    assert result.exit_code == exits.OK, result.output
    assert "cudnn isn't here: for CUDA devices only" in result.stderr
    assert "forward, flashgen over eager: geomean" in result.stdout
    record = read_record(out)
    assert record.contenders == ("flashgen", "flash", "math", "eager")
    assert record.passes == ("forward", "backward") and record.commit == "abc"
    assert [(c.key, c.batch, c.num_heads, c.seqlen_q) for c in record.cells] == [
        ("d24-fp32-causal", 2, 2, 32)
    ]
    shown = run("bench", "--show", out).stdout
    assert shown.startswith("| variant | seqlen |") and "| d24-fp32-causal | 32 | forward" in shown


def test_bench_of_a_key_and_of_a_spec(run, spec_dir):
    by_name = run("bench", "mine", "--specs", spec_dir, "--peers", "none", "--host", *TINY)
    assert by_name.exit_code == exits.OK, by_name.output
    assert "d24-fp32-causal" in by_name.stdout and " us " in by_name.stdout
    both = run("bench", "d24-fp32-causal", "--dims", "24", *TINY)
    assert both.exit_code == exits.BAD_INPUT and "drop --dims" in both.stderr


def test_a_peer_that_fails_is_exit_1(run, monkeypatch):
    from flashgen.runtime.bench.peers import PEERS

    def broken(*_):
        raise RuntimeError("fell back")

    monkeypatch.setattr(type(PEERS["eager"]), "attend", broken)
    result = run(*SWEEP, "--peers", "eager,math")
    assert result.exit_code == exits.CHECK_FAILED
    assert "error: d24-fp32-causal, seqlen 32: eager: RuntimeError: fell back" in result.stderr
    assert "flashgen over math" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dims", "x"), "expected positive numbers, got 'x'"),
        (("--seqlens", "0"), "expected positive numbers, got '0'"),
        (("--passes", "both"), "expected some of forward, backward, recorded, step, got 'both'"),
        (("--peers", "fa9"), "expected some of flash, cudnn"),
        (("--device", "moon"), "moon"),
        (("--memory", "--device", "cpu", "--dtype", "fp32", "--dims", "24", "--causal", "yes",
          "--dropout", "0", "--seqlens", "32"), "expected a CUDA device, got cpu"),
        (("--show", "nothing.json"), "expected a record, got No such file"),
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_2(run, arguments, message):
    result = run("bench", *arguments)
    assert result.exit_code == exits.BAD_INPUT, result.output
    assert message in result.stderr


def test_plot_of_an_old_record_is_refused(run, tmp_path):
    (tmp_path / "old.json").write_text(json.dumps({"benchmark": "sm80_speed"}))
    result = run("bench", "--plot", tmp_path / "old.json")
    assert result.exit_code == exits.BAD_INPUT and "Write one with -o" in result.stderr


def test_a_records_command_names_no_place(monkeypatch):
    words = [
        "x",
        "bench",
        "--dims",
        "64",
        "-o",
        "/a/b.json",
        "--commit=abc",
        "--out",
        "c",
        "--host",
    ]
    monkeypatch.setattr("sys.argv", words)
    assert bench._command_line() == "flashgen bench --dims 64 --host"
