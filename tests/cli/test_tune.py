"""`flashgen tune` from end to end: two candidates of a tiny problem on the CPU."""

from __future__ import annotations

import json

from flashgen.cli import exits

TINY = ("--limit", "2", "--rounds", "2", "--seqlen", "16", "--tokens", "16", "--hidden", "16")


def test_tune_times_and_keeps_the_winner(run, tmp_path):
    arguments = ("tune", "d16-fp32", "--device", "cpu", "--passes", "forward", *TINY)
    result = run(*arguments, cache=tmp_path)
    assert result.exit_code == exits.OK, result.output
    assert "plan     tile_m" in result.stdout and "shipped" in result.stdout
    assert "[4/4 d16-fp32 forward: decided]" in result.stderr
    assert list(tmp_path.glob("tuned/*/cpu/cpu/forward/d16-fp32.json"))
    again = json.loads(run(*arguments, "--json", cache=tmp_path).stdout)
    (row,) = again
    assert row["key"] == "d16-fp32" and len(row["trials"]) == 2
    assert all(set(trial["ms"]) == {"16"} and not trial["problem"] for trial in row["trials"])
    shown = run("show", "d16-fp32", "--arch", "cpu", cache=tmp_path).stdout
    assert ("  pins " in shown) == (row["gain"] > 1)


def test_tune_needs_a_key_that_exists(run):
    assert run("tune").exit_code == exits.BAD_INPUT
    result = run("tune", "nothing-such")
    assert result.exit_code == exits.BAD_INPUT and "expected a key such as" in result.stderr
