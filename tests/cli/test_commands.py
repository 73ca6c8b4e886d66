"""What each command prints and leaves behind, on kernels for the CPU."""

from __future__ import annotations

import json

import pytest

from flashgen.cli import exits, show
from flashgen.cli.tables import format_table, human_bytes
from flashgen.generator.variant import PASSES
from flashgen.runtime import paths
from flashgen.runtime.catalogue import Catalogue

KEY = "d24-fp32-causal"


@pytest.fixture
def built(run):
    """The kernels of KEY in the shared cache; the first test here compiles them."""
    result = run("build", KEY, "--arch", "cpu")
    assert result.exit_code == exits.OK, result.output
    return result


def json_of(result):
    assert result.exit_code == exits.OK, result.output
    return json.loads(result.stdout)


def test_four_lines_of_yaml_make_a_key_that_every_command_knows(run, spec_dir, built):
    """A user's spec, by --specs before or after the command, needs no Python."""
    listed = run("list", "--specs", spec_dir)
    assert KEY in listed.output and "mine.yaml:1" in listed.output
    assert run("--specs", spec_dir, "list").output == listed.output
    assert KEY in run("show", "mine", "--specs", spec_dir, "--arch", "cpu").output
    again = run("build", "mine", "--specs", spec_dir, "--arch", "cpu")
    assert again.exit_code == exits.OK and "0 compiled now" in again.output
    by_file = run("build", f"{spec_dir / 'mine.yaml'}:mine", "--arch", "cpu")
    assert "0 compiled now" in by_file.output
    rows = json_of(run("verify", "mine", "--specs", spec_dir, "--json"))
    assert {row["key"] for row in rows} == {KEY} and all(row["ok"] for row in rows)


def test_list_json(run, spec_dir):
    entries = json_of(run("list", "--json", "--specs", spec_dir))
    assert entries[-1]["key"] == KEY and entries[-1]["name"] == "mine"
    assert entries[-1]["passes"] == list(PASSES)


def test_list_groups_by_the_folder_of_the_specs(run, spec_dir):
    """The shipped folders by their names, a user's in full; each key below its group."""
    groups = {entry["key"]: entry["group"] for entry in json_of(run("list", "--json"))}
    assert groups["d64-fp16-causal-dropout"] == "models"
    assert groups["d128-bf16-causal-det"] == "options"
    lines = run("list", "--specs", spec_dir).output.splitlines()
    assert str(spec_dir) in lines[-3:] and lines[-1].startswith(KEY)
    assert lines.index("models") < lines.index("options")


def test_build_compiles_once_and_force_compiles_again(run, built):
    again = json_of(run("build", KEY, "--arch", "cpu", "--json"))
    assert [entry["compiled"] for entry in again] == [False, False]
    forced = json_of(run("build", KEY, "--arch", "cpu", "--json", "--force", "--jobs", "1"))
    assert [entry["compiled"] for entry in forced] == [True, True]
    assert {entry["pass"] for entry in forced} == set(PASSES)
    assert {e["directory"] for e in forced}.isdisjoint(e["directory"] for e in again)


def test_build_prints_a_plain_line_for_each_unit_without_a_terminal(run, tmp_path):
    result = run("build", "d8-fp64", "--arch", "cpu", cache=tmp_path / "new")
    assert result.exit_code == exits.OK, result.output
    assert "[1/2]" in result.stderr and "[2/2]" in result.stderr
    assert "\x1b" not in result.output and "\r" not in result.output
    assert "2 compiled now" in result.stdout and str(tmp_path / "new") in result.stdout


def test_catalogue_build_respects_arch_and_dtype(run, spec_dir, monkeypatch):
    """Without names, only what a spec's arch and dtype admit is asked for."""
    from flashgen.cli.selection import select_requests
    from flashgen.generator.arch import TARGETS
    from flashgen.runtime.catalogue import Catalogue

    (spec_dir / "cpu.yaml").write_text("head_dim: 48\ndtype: bf16\narch: [cpu]\n")
    catalogue = Catalogue.load((spec_dir,))
    wanted = [TARGETS["cpu"], TARGETS["sm80"]]
    requests = select_requests(catalogue, (), wanted)
    pairs = {(request.variant.key, request.target.name) for request in requests}
    assert (KEY, "cpu") in pairs and (KEY, "sm80") not in pairs  # fp32
    assert ("d48-bf16", "cpu") in pairs and ("d48-bf16", "sm80") not in pairs  # its arch
    assert ("d128-bf16-causal", "sm80") in pairs
    named = select_requests(catalogue, ("d48-bf16",), wanted)
    assert {request.target.name for request in named} == {"cpu", "sm80"}
    strict = {request.variant.key: request.strict for request in requests}
    assert strict["d128-bf16-causal"] and not strict[KEY]


def test_show_explains_family_plan_and_resources(run, built):
    text = run("show", KEY, "--arch", "cpu").output
    for word in "forward backward family tile_m segments flags built".split():
        assert word in text
    entries = json_of(run("show", KEY, "--arch", "cpu", "--json"))
    assert [entry["pass"] for entry in entries] == list(PASSES)
    assert entries[0]["artifact"]["library"].endswith(".so")
    assert entries[0]["plan"]["tile_m"] > 0


def test_show_source_is_the_source_alone(run, built):
    text = run("show", KEY, "--arch", "cpu", "--source").output
    assert text.startswith("//") and text.count("TVM_FFI_DLL_EXPORT") >= len(PASSES)


def test_show_names_what_is_set_and_what_is_of_its_own(run, tmp_path):
    plain = run("show", KEY, "--arch", "cpu").output
    assert "dtype" in plain
    assert not any(word in plain for word in ("window", "softcap", "sink", "None"))
    spec = tmp_path / "own.yaml"
    spec.write_text(
        "name: own\nhead_dim: 16\ndtype: fp32\nsink: true\n"
        "captures: {bias: {dims: [num_heads], dtype: fp32, grad: true}}\n"
        "score: score + bias[h]\n"
    )
    (entry,) = Catalogue.load([spec]).find("own")
    text = "\n".join(show._spec_lines(entry))
    assert "sink          learned" in text
    assert "capture       bias (num_heads) fp32, with a gradient" in text
    assert f"score; flashgen explain {entry.key} prints them" in text


def test_show_of_what_is_not_built_says_how(run, tmp_path):
    text = run("show", "d128-fp64", "--arch", "cpu", cache=tmp_path / "empty").output
    assert "flashgen build d128-fp64 --arch cpu" in text
    assert not (tmp_path / "empty" / "cpu").exists()


def test_verify_prints_a_table_and_fails_beyond_the_bound(run, built, monkeypatch):
    before = run("cache", "ls").output
    good = run("verify", KEY)
    assert good.exit_code == exits.OK, good.output
    assert run("cache", "ls").output == before, "verify built again what build had built"
    assert good.output.split()[:3] == ["key", "target", "pass"] and "FAILED" not in good.output

    from flashgen.runtime import verify

    row = verify.VerifyRow(KEY, "cpu", "forward", "out", 1.0, 0.5, False, "at (0, 0, 0, 0)")
    monkeypatch.setattr(verify, "verify", lambda *args, **kwargs: [row])
    bad = run("verify", KEY)
    assert bad.exit_code == exits.CHECK_FAILED
    assert "FAILED" in bad.stdout and "at (0, 0, 0, 0)" in bad.stderr


def test_cache_commands(run, built, tmp_path):
    root = tmp_path / "cache"
    assert run("build", "d8-fp32", "--arch", "cpu", cache=root).exit_code == exits.OK
    listed = json_of(run("cache", "ls", "--json", cache=root))
    assert [(entry["key"], entry["pass"]) for entry in listed] == [
        ("d8-fp32", "backward"),
        ("d8-fp32", "forward"),
    ]
    usage = json_of(run("cache", "du", "--json", cache=root))
    assert usage["targets"]["cpu"]["kernels"] == 2 and usage["directory"] == str(root)
    assert str(root) in run("cache", "ls", cache=root).output
    assert "all" in run("cache", "du", cache=root).output

    assert run("cache", "verify", cache=root).exit_code == exits.OK
    (library,) = (root / "cpu").glob("fwd*/*.so")
    library.write_bytes(library.read_bytes()[:-1])
    damaged = run("cache", "verify", cache=root)
    assert damaged.exit_code == exits.CHECK_FAILED and library.name in damaged.output

    assert run("cache", "rm", "d16-fp32", cache=root).exit_code == exits.BAD_INPUT
    assert run("cache", "rm", "d8-fp32", "--arch", "cpu", cache=root).exit_code == exits.OK
    assert json_of(run("cache", "ls", "--json", cache=root)) == []
    assert run("cache", "gc", "--older-than", "0m", cache=root).exit_code == exits.OK


def test_doctor_finds_the_host_compiler(run, monkeypatch, tmp_path):
    findings = {entry["subject"]: entry for entry in json_of(run("doctor", "--json"))}
    assert findings["g++"]["state"] == "ok" and findings["torch"]["state"] == "ok"
    monkeypatch.setenv("CXX", "/no/such/compiler")
    broken = run("doctor")
    assert broken.exit_code == exits.CHECK_FAILED and "/no/such/compiler" in broken.output


def test_schema_is_json(run):
    assert json_of(run("schema"))["title"] == "flashgen spec"


def test_generate_writes_a_source_that_compiles_alone(run, tmp_path):
    result = run("generate", KEY, "--arch", "cpu", "-o", tmp_path / "out")
    assert result.exit_code == exits.OK, result.output
    sources = sorted(path.name for path in (tmp_path / "out").glob("*.cpp"))
    assert sources == ["bwd_d24_fp32_causal_cpu.cpp", "fwd_d24_fp32_causal_cpu.cpp"]
    assert (tmp_path / "out" / "host" / "abi.h").is_file()


@pytest.fixture
def small_goldens(monkeypatch, tmp_path):
    """generated/ in a folder of the test's own, with three files."""
    folder = tmp_path / "generated"
    folder.mkdir()
    monkeypatch.setattr(paths, "generated_folder", lambda: folder)
    monkeypatch.setattr(
        "flashgen.cli.generate.render_goldens",
        lambda: (("fwd.cpp", "one\ntwo\n"), ("README.md", "index\n")),
    )
    return folder


def test_generate_check_fails_on_drift_with_a_diff(run, small_goldens):
    assert run("generate", "--check").exit_code == exits.CHECK_FAILED  # nothing is there yet
    assert run("generate").exit_code == exits.OK
    assert run("generate", "--check").exit_code == exits.OK

    (small_goldens / "fwd.cpp").write_text("one\ntwice\n")
    (small_goldens / "surplus.cu").write_text("old\n")
    drift = run("generate", "--check")
    assert drift.exit_code == exits.CHECK_FAILED
    assert "-twice" in drift.stdout and "+two" in drift.stdout and "-old" in drift.stdout
    assert "run: flashgen generate" in drift.stderr
    assert (small_goldens / "surplus.cu").exists(), "--check must write nothing"

    assert run("generate").exit_code == exits.OK
    assert sorted(path.name for path in small_goldens.iterdir()) == ["README.md", "fwd.cpp"]


def test_tables():
    text = format_table(("name", "n"), [("a", "1"), ("bcd ef", "22")], right="n")
    assert text == "name     n\na        1\nbcd ef  22"
    assert [human_bytes(n) for n in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
    ]
