"""docs/language.md: every field, name and function is on it, and its example is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashgen.generator.body import AXES, CAPTURE_DTYPES
from flashgen.generator.expression.size import MAX_NODES
from flashgen.generator.expression.tokens import MAX_CHARS, MAX_NESTING
from flashgen.generator.ir.nodes import FUNCTIONS, INDEX_NAMES
from flashgen.generator.spec import load_specs
from flashgen.generator.spec_fields import SpecFields

PAGE = Path(__file__).parents[2] / "docs" / "language.md"


@pytest.fixture(scope="module")
def page():
    if not PAGE.exists():
        pytest.skip("no docs beside the tests")
    return PAGE.read_text(encoding="utf-8")


def test_everything_is_on_it(page):
    prose = re.sub("```.*?```", "", page, flags=re.DOTALL)
    coded = " ".join(re.findall("`([^`]+)`", prose))
    words = (*SpecFields.__struct_fields__, *FUNCTIONS, *INDEX_NAMES, *AXES, *CAPTURE_DTYPES)
    assert [word for word in words if not re.search(rf"\b{word}\b", coded)] == []
    assert f"{MAX_CHARS} characters and {MAX_NESTING} levels" in page
    assert f"{MAX_NODES} operations" in page


def test_the_example_is_a_spec(page):
    (example,) = re.findall("```yaml\n(.*?)```", page, re.DOTALL)
    (spec,) = load_specs(example, "documents.yaml")
    assert [capture.name for capture in spec.variants[0].body.captures] == ["doc", "slope"]
    assert spec.keys[0].startswith("d256-bf16-causal-window4096x0-")
