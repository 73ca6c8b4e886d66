"""Characters of scalars: each is found again in the file, however it was written."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator import yaml_source
from flashgen.generator.yaml_places import (
    SHOWN_CHARS,
    character_offsets,
    offset_of,
    place_of,
    underlined,
)
from flashgen.generator.yaml_source import read_documents

WRITTEN = [
    "a: one two X three",
    "a: 'one X'",
    "a: 'it''s ''X'''",
    'a: "one X"',
    'a: "tab\\t quote \\" slash \\\\ X"',
    'a: "\\u00e9\\x41 X"',
    'a: "one \\\n    two X"',
    "a: one\n  two\n  X three",
    "a: 'one\n\n  two\n  X'",
    "a: >\n  one\n  two X\n",
    "a: >-  # why\n  one\n\n\n  two\n    X\n",
    "a: |\n  one\n    two\n\n  X\n",
    "a: |2-\n    one\n  X",
    "a: &name X",
    "a: &name >\n  one\n  X",
    "a: {b: one X, c: 3}",
    "- [one, 'X']",
    "é: 'ü X'",
    "a:\n\n    one X # X",
    "a: one\r\n  X\r\nb: 1\r\n",
    "a: 'one\u2028  X'",
]


def scalars(node):
    if node.items is not None:
        return [leaf for item in node.items for leaf in scalars(item)]
    if node.entries is not None:
        return [leaf for entry in node.entries for leaf in scalars(entry.node)]
    return [node]


@pytest.fixture(params=["libyaml", "python"])
def loader(request, monkeypatch):
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    kind = yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader
    monkeypatch.setattr(yaml_source, "_Loader", kind)


@pytest.mark.parametrize("text", WRITTEN)
@pytest.mark.usefixtures("loader")
def test_each_way_to_write_a_scalar(text):
    (document,) = read_documents(text, "x.yaml")
    (leaf,) = [leaf for leaf in scalars(document.root) if "X" in leaf.text]
    start = offset_of(text, leaf.mark.line, leaf.mark.column)
    offsets = character_offsets(text, start, leaf.text)
    assert offsets[leaf.text.index("X")] == text.index("X")
    assert offsets == sorted(offsets)
    assert len(offsets) == len(leaf.text) + 1


def test_what_does_not_match_is_the_scalars_start():
    assert character_offsets("a: one", 3, "two") == [3, 3, 3, 3]


@pytest.mark.usefixtures("loader")
def test_an_alias_is_where_its_value_was_written():
    text = "a: &x 'one two'\nb: *x\n"
    (document,) = read_documents(text, "f")
    error = str(document.error_in(("b",), 4, 7, "wrong."))
    assert error.splitlines() == ["f:1:12: wrong.", "  a: &x 'one two'", "             ^~~"]


PIECES = st.text("ab+ \t'\"\\:#>é\n", max_size=30)


@given(PIECES, st.sampled_from(["'", '"', "|", ">", None]))
def test_what_pyyaml_writes_is_found_again(value, style):
    text = yaml.dump({"k": {"m": value}}, default_style=style, allow_unicode=True, width=20)
    (document,) = read_documents(text, "x.yaml")
    leaf = scalars(document.root)[-1]
    if not isinstance(leaf.scalar, str) or leaf.text != value:
        return
    start = offset_of(text, leaf.mark.line, leaf.mark.column)
    offsets = character_offsets(text, start, value)
    for character, offset in zip(value, offsets, strict=False):
        if character in "ab+é:#>":  # escapes and blanks may be a little off
            assert text[offset] == character


@given(st.text("a\n\r\x85\u2028", max_size=20), st.integers(0, 20))
def test_places_and_offsets_are_inverse(text, offset):
    offset = min(offset, len(text))
    if text[offset - 1 : offset + 1] == "\r\n":
        return  # in the middle of a line break
    assert offset_of(text, *place_of(text, offset)) == offset


def test_long_lines_are_cut_around_the_caret():
    line = "-" * 500 + "X" + "-" * 500
    shown, caret = underlined(line, 501, 1).splitlines()
    assert len(shown) <= SHOWN_CHARS + 8
    assert shown[caret.index("^")] == "X"
    assert shown.startswith("  ...") and shown.endswith("...")


def test_tabs_keep_the_caret_in_its_column():
    shown, caret = underlined("\ta X", 4, 1).splitlines()
    assert shown[caret.index("^")] == "X"
