"""What README and its siblings show exists and runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flashgen.cli.app import COMMANDS, app
from flashgen.generator.arch import TARGETS, family_for
from flashgen.generator.errors import TargetError
from flashgen.generator.spec import load_specs
from flashgen.generator.spec_fields import SpecFields
from flashgen.runtime import knobs

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))),
)
README = (ROOT / "README.md").read_text("utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def rows(first_cell: str) -> list[list[str]]:
    """The cells of each table row whose first cell matches."""
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in README.splitlines()]
    return [row for row in cells if re.fullmatch(first_cell, row[0])]


def shown_commands() -> list[tuple[str, list[str]]]:
    """(page, arguments) of each `flashgen …` in code of the pages."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        spans = re.findall(r"`(flashgen [a-z][^`\n]*)`", text)
        code = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        code += re.findall(r"^    .*$", text, re.MULTILINE)
        lines = [part for block in code for part in re.split(r"\n|&&|  #", block)]
        spans += [line for line in map(str.strip, lines) if line.startswith("flashgen ")]
        found += [(page, shlex.split(span)[1:]) for span in dict.fromkeys(spans)]
    return found


def test_variables_are_the_knobs():
    assert rows("`FLASHGEN_.*") == [
        [f"`{k.name}`", k.type, k.default, k.effect] for k in knobs.KNOBS
    ]


def test_no_variable_that_does_not_exist():
    names = {knob.name for knob in knobs.KNOBS}
    for page in PAGES:
        used = set(re.findall(r"FLASHGEN_[A-Z_]+[A-Z]", (ROOT / page).read_text("utf-8")))
        assert used <= names, page


def test_commands_are_those_of_the_table():
    shown = [[f"`flashgen {name}`", text] for name, (_, text) in COMMANDS.items()]
    assert rows(r"`flashgen \w+`") == shown


def test_targets_are_those_of_the_table():
    expected = []
    for target in TARGETS.values():
        try:
            family = family_for(target)[0]
        except TargetError:
            family = "none yet"
        smem = "–" if target.is_cpu else f"{target.max_smem_bytes // 1024} KiB"
        expected.append([f"`{target.name}`", family, smem])
    assert rows("`(?:cpu|sm[0-9]+)`") == expected


def test_spec_fields_are_those_of_the_language():
    fields = {row[0].strip("`") for row in rows("`[a-z_]+`") if row[0].strip("`") not in TARGETS}
    assert fields == set(SpecFields.__struct_fields__)


@pytest.mark.parametrize(("page", "arguments"), shown_commands(), ids=str)
def test_commands_shown_exist_with_their_options(page, arguments):
    """Parsed, not run: an unknown command, option or spelling of a target is a usage error."""
    command: click.Command = app
    context = click.Context(app, info_name="flashgen")
    while isinstance(command, click.Group) and arguments:
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"{page} shows the command {name}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_parser(context).parse_args(list(arguments))


def test_files_that_the_pages_name_exist():
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        folders = "generator|runtime|templates|tests|docs|benchmarks|src|generated"
        for name in re.findall(rf"`((?:{folders})/[\w/.]*\w)`", text):
            assert (ROOT / name).exists(), f"{page} names {name}"


def test_specs_shown_are_specs():
    block, *others = code_blocks("yaml")
    (spec,) = load_specs(block, "mine.yaml")
    for other in others:
        (own,) = load_specs(other, "other.yaml")
        assert own.keys
    assert spec.name == "mine" and f"`{spec.keys[0]}`" in README
    assert block.count("\n") == 4, "README says four lines"


def test_what_explain_is_shown_to_print_it_prints(tmp_path):
    file = tmp_path / "documents.yaml"
    file.write_text(code_blocks("yaml")[1], encoding="utf-8")
    (shown,) = code_blocks("text")
    arguments = ["explain", str(file), "--seqlen-q", "1024"]
    assert shown in CliRunner().invoke(app, arguments).stdout


def test_build_times_are_those_of_the_record():
    record = json.loads((ROOT / "benchmarks" / "results" / "build_time.json").read_text())
    for name in ("forward", "backward"):
        seconds, peak = record[name]["seconds"], record[name]["peak_bytes"]
        assert [name, f"{seconds:.1f}", f"{peak / 1e6:.0f} MB"] in rows(name)
        assert seconds <= record["limits"][name] and peak <= record["limits"]["peak_bytes"]
    load = record["load"]["seconds"]
    assert f"takes {load * 1e3:.0f} ms" in README and load <= record["limits"]["load_seconds"]
    assert f"{record['shapes']['calls']} calls" in README and record["shapes"]["builds"] == 0
    assert record["nvcc"] in README and f"{record['cpu']}, nvcc" in README


def test_the_python_shown_runs(tmp_path):
    (tmp_path / "documents.yaml").write_text(code_blocks("yaml")[1], encoding="utf-8")
    script = "\n".join(code_blocks("python"))  # the later ones go on with the names of the first
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
