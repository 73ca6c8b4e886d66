"""YAML reading: places, YAML 1.2 scalars, and input that is hostile or broken."""

from __future__ import annotations

import math
import re
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.generator import yaml_source
from flashgen.generator.errors import SpecError
from flashgen.generator.yaml_source import Mark, decode, read_documents

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]\n"
    for below, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture(params=["libyaml", "python"])
def loader(request, monkeypatch):
    """Both parsers; the second is what a machine without libyaml uses."""
    if request.param == "libyaml" and not yaml.__with_libyaml__:
        pytest.skip("PyYAML was built without libyaml")
    kind = yaml.CSafeLoader if request.param == "libyaml" else yaml.SafeLoader
    monkeypatch.setattr(yaml_source, "_Loader", kind)


def plain(text):
    return [document.plain() for document in read_documents(text, "x.yaml")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("50.", 50.0),
        (".5", 0.5),
        ("12", 12),
        ("0x10", 16),
        ("0o10", 8),
        ("010", 10),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("on", "on"),
        ("No", "No"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("'12'", "12"),
        ("~", None),
        ("", None),
    ],
)
def test_scalars_are_yaml_1_2(loader, text, value):
    (data,) = plain(f"a: {text}")
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


def test_nan():
    (data,) = plain("a: .nan")
    assert math.isnan(data["a"])


def test_every_part_has_its_place(loader):
    (document,) = read_documents("# note\nhead_dim:\n  - 64\n  - {qk: 192, v: 128}\n", "x.yaml")
    assert document.mark == Mark(2, 1)
    assert document.key_mark(("head_dim",)) == Mark(2, 1)
    assert document.value_mark(("head_dim", 0)) == Mark(3, 5)
    assert document.key_mark(("head_dim", 1, "v")) == Mark(4, 15)
    assert document.value_mark(("head_dim", 1, "v")) == Mark(4, 18)
    # what isn't there gives the nearest place that is
    assert document.value_mark(("head_dim", 1, "w")) == Mark(4, 5)
    assert document.value_at(("head_dim", 7)) is None


def test_alias_is_a_copy_at_its_own_place(loader):
    (document,) = read_documents("a: &x {qk: 8, v: 8}\nb: *x\n", "x.yaml")
    assert document.plain()["b"] == {"qk": 8, "v": 8}
    assert document.value_mark(("b",)) == Mark(2, 4)


def test_several_documents_and_empty_ones(loader):
    assert plain("a: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert plain("") == plain("# only a comment\n") == plain("---\n") == []


def test_byte_order_mark_and_windows_line_ends(loader):
    assert plain("\ufeffa: 1\r\nb: 2\r\n") == [{"a": 1, "b": 2}]
    assert decode(b"\xef\xbb\xbfa: 1\r\n", "x.yaml") == "a: 1\r\n"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("a: 1\na: 2\n", "2:1", "duplicate key, first on line 1"),
        ("a: {b: 1, b: 2}\n", "1:11", "duplicate key"),
        ("a:\n\t- 1\n", "2:1", "got a tab"),
        ("\ta: 1\n", "1:1", "got a tab"),
        ("a: [1\n", "2:1", "expected YAML"),
        ("a: b: c\n", "1:5", "expected YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "1:4", "tag !!python/object/apply"),
        ("!!python/name:os.system x\n", "1:1", "nothing is run"),
        ("a: !mine 3\n", "1:4", "tag !mine"),
        ("a: !!str 3\n", "1:4", "tag !!str"),
        ("!!python/name:os.system : 1\n", "1:1", "tag"),
        ("[a]: 1\n", "1:1", "expected a name as the key"),
        ("a: &x [*x]\n", "1:8", "inside its own anchor"),
        ("a: *x\n", "1:4", "expected an anchor"),
        (BOMB, "5:", "Split it into several files"),
        ("a: " + "[" * 40 + "]" * 40, "1:35", "levels of nesting"),
        ("a: " + "9" * 5000, "1:4", "at most 40 digits"),
        ("a: x\x00", "1:5", "U+0000"),
        ("a: 1\nb: \x1b[0m", "2:4", "U+001B"),
        ("a: \ud800", "1:4", "U+D800"),
    ],
)
def test_refusals_say_where_and_what(loader, text, place, says):
    with pytest.raises(SpecError, match=re.escape(says)) as caught:
        plain(text)
    assert str(caught.value).startswith(f"x.yaml:{place}")


def test_deep_nesting_does_not_exhaust_a_stack(loader):
    for text in ("[" * 100_000, "{a: " * 100_000, "- " * 100_000):
        with pytest.raises(SpecError, match="nesting"):
            plain(text)


def test_alias_bomb_is_refused_at_once(loader):
    started = time.perf_counter()
    with pytest.raises(SpecError):
        plain(BOMB)
    assert time.perf_counter() - started < 1


def test_huge_file_is_refused():
    with pytest.raises(SpecError, match="at most 1048576 characters"):
        plain("# " + "x" * (1 << 20))


def test_text_that_is_not_utf_8():
    with pytest.raises(SpecError, match=r"x\.yaml:2:4: expected UTF-8 text, got byte 0xe9"):
        decode("a: 1\nb: é\n".encode("latin-1"), "x.yaml")
    with pytest.raises(SpecError, match="UTF-8"):
        decode("a: 1\n".encode("utf-16"), "x.yaml")


SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text("ab-'é ", max_size=6)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text("abc"), v, max_size=4)
)


@given(VALUES, st.booleans())
def test_reads_what_a_writer_wrote(value, flow):
    text = yaml.safe_dump({"value": value}, default_flow_style=flow, allow_unicode=True)
    assert plain(text) == [{"value": value}]


@settings(max_examples=300)
@given(st.text("ab:-{}[],&*!|>'\"#%@`\t\n ?~=<\\0", max_size=30))
def test_any_text_gives_data_or_a_spec_error(text):
    try:
        read_documents(text, "x.yaml")
    except SpecError as error:
        assert re.match(r"x\.yaml:\d+:\d+: ", str(error))
