"""generated/ is what the templates give now."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from flashgen.generator.goldens import GOLDENS, INDEX, render_goldens
from flashgen.generator.render import spaced
from flashgen.generator.variant import parse_key

GENERATED = Path(__file__).resolve().parents[1] / "generated"
REWRITE = "read the diff, then run: flashgen generate"


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return dict(render_goldens())


def test_generated_is_true(rendered):
    committed = {path.name: path.read_text("utf-8") for path in GENERATED.iterdir()}
    assert committed.keys() == rendered.keys(), REWRITE
    for name, text in rendered.items():
        assert committed[name] == text, f"{name} is stale; {REWRITE}"


def test_renders_are_repeatable(rendered):
    assert dict(render_goldens()) == rendered


def test_every_feature_and_pass_is_shown():
    shown = {(golden.target, golden.pass_name) for golden in GOLDENS}
    assert {(t, p) for t in ("cpu", "sm80") for p in ("forward", "backward")} <= shown
    assert ("sm90", "forward") in shown
    variants = [parse_key(golden.key) for golden in GOLDENS]
    assert any(v.causal for v in variants) and any(v.dropout for v in variants)
    assert any(v.deterministic for v in variants)
    assert any(v.head_dim != v.head_dim_v for v in variants)
    assert len(GOLDENS) <= 18, "keep the set small enough to review"


def test_no_trace_of_the_machine(rendered):
    for name, text in rendered.items():
        assert str(Path.home()) not in text and str(GENERATED.parent) not in text, name


@pytest.mark.skipif(shutil.which("clang-format") is None, reason="needs clang-format (extra: dev)")
def test_sources_are_formatted(rendered):
    for name, text in rendered.items():
        if name == INDEX:
            continue
        formatted = subprocess.run(
            ["clang-format", f"--assume-filename={GENERATED / name}"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert formatted == text, f"{name}: its template is not in .clang-format's style"


def test_definitions_stand_apart(rendered):
    for name, text in rendered.items():
        lines = text.splitlines()
        for number, (line, following) in enumerate(pairwise(lines), start=1):
            crowded = line in ("}", "};") and following[:1] not in ("", "}", "#", " ")
            assert not crowded or following.startswith("static_assert"), f"{name}:{number}"
            assert line or following, f"{name}:{number}: two blank lines"


def test_spacing_leaves_what_belongs_together():
    text = "int f() {\n}\nint g();\n\n\n\nstruct A {\n};\nstatic_assert(true);\n}  // namespace\n"
    assert spaced(text) == (
        "int f() {\n}\n\nint g();\n\nstruct A {\n};\nstatic_assert(true);\n}  // namespace\n"
    )
