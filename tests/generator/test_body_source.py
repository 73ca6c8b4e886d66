"""Bodies of specs: captures, params, lets, mask and score; and each refusal with its place."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.body import Capture, Param
from flashgen.generator.canonical import canonical_text
from flashgen.generator.errors import SpecError
from flashgen.generator.ir.nodes import Binary, Const, Load, Name, Named
from flashgen.generator.spec import load_specs

BASE = "head_dim: 64\ndtype: bf16\n"
EXAMPLE = """\
head_dim: 256
dtype: bf16
captures:
  slope: {dims: [num_heads], dtype: fp32, grad: true}
  doc:   {dims: [seqlen_k],  dtype: int32}
params:
  W: 4096
  cap: {runtime: float}
let:
  dist: "q_idx - kv_idx"
mask:  "0 <= dist <= W and doc[q_idx] == doc[kv_idx]"
score: "cap * tanh((score - dist * slope[h]) / cap)"
"""


def body_of(text):
    (spec,) = load_specs(text, "x.yaml")
    (body,) = {variant.body for variant in spec.variants}
    return body


def refusal(text):
    with pytest.raises(SpecError) as caught:
        load_specs(text, "x.yaml")
    return str(caught.value)


def test_the_example():
    body = body_of(EXAMPLE)
    assert body.captures == (
        Capture("doc", ("seqlen_k",), "int32"),
        Capture("slope", ("num_heads",), "fp32", grad=True),
    )
    assert body.params == (Param("cap", "float"),)
    dist = Named("dist", Binary("-", Name("q_idx"), Name("kv_idx")))
    q, kv = (Load("doc", (Name(name),), "int") for name in ("q_idx", "kv_idx"))
    window = Binary("and", Binary("<=", Const(0), dist), Binary("<=", dist, Const(4096)))
    assert body.mask == Binary("and", window, Binary("==", q, kv))
    assert canonical_text(body) == (
        "capture doc [seqlen_k] int32\n"
        "capture slope [num_heads] fp32 grad\n"
        "param cap float\n"
        "mask (and (and (<= 0 (- q_idx kv_idx)) (<= (- q_idx kv_idx) 4096)) "
        "(== (load doc q_idx) (load doc kv_idx)))\n"
        "score (* cap (tanh (/ (- score (* (float (- q_idx kv_idx)) (load slope h))) cap)))"
    )


@pytest.mark.parametrize(
    "fields",
    ["", "mask: true", "mask: 'True'", "mask: True", "score: score", "let: {s: score}\nscore: s"],
)
def test_what_changes_nothing_is_no_body(fields):
    assert body_of(BASE + fields) is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ("mask: false", "mask False"),
        ("score: 0", "score 0.0"),
        ("score: 1e-3", "score 0.001"),
        ("score: h", "score (float h)"),
        ("mask: q_idx >= kv_idx", "mask (>= q_idx kv_idx)"),
        ("mask: >\n  q_idx\n  >= kv_idx", "mask (>= q_idx kv_idx)"),
        ("mask: |\n  q_idx\n    >= kv_idx\n", "mask (>= q_idx kv_idx)"),
        ("let: {a: q_idx, c: a + 1}\nmask: c > kv_idx", "mask (> (+ q_idx 1) kv_idx)"),
        ("params: {on: true}\nmask: on and h > 0", "mask (and True (> h 0))"),
    ],
)
def test_ways_to_write_an_expression(fields, text):
    assert canonical_text(body_of(BASE + fields)) == text


def test_params_are_sizes_of_captures():
    text = "params: {N: 32, M: 64}\ncaptures: {t: {dims: [num_heads, N, 8], dtype: fp16}}\n"
    body = body_of(f"{BASE}{text}score: score + t[h, q_idx % M, 0]")
    assert body.captures == (Capture("t", ("num_heads", 32, 8), "fp16"),)


def test_a_scalar_capture_is_a_bare_name():
    body = body_of(BASE + "captures: {s: {dims: [], dtype: fp32, grad: true}}\nscore: score * s")
    assert body.score == Binary("*", Name("score", "float"), Load("s", (), "float"))


def test_a_matrix_shares_one_body():
    text = BASE.replace("64", "[64, 128]") + "causal: [true, false]\nscore: score * 2\n"
    (spec,) = load_specs(text, "x.yaml")
    assert len({variant.body for variant in spec.variants}) == 1
    assert len(set(spec.keys)) == 4


DOC = "captures: {doc: {dims: [seqlen_k], dtype: int32}}\n"
REFUSED = [
    # captures
    ("captures: {doc: {dims: [seqlen_k], dtype: int}}", "3:43", "Did you mean 'int64'"),
    ("captures: {doc: {dims: [seqlen_k], dtype: float32}}", "3:43", "Did you mean 'fp32'"),
    ("captures: {doc: {dims: [seqlen_kk], dtype: int32}}", "3:25", "Did you mean 'seqlen_k'"),
    ("captures: {doc: {dims: [N], dtype: int32}}", "3:25", "expected a number or one of batch"),
    ("captures: {doc: {dims: [0], dtype: int32}}", "3:25", "expected a positive integer"),
    ("captures: {doc: {dims: [2.5], dtype: int32}}", "3:25", "expected a positive integer"),
    ("captures: {doc: {dims: seqlen_k, dtype: int32}}", "3:24", "expected a list of sizes"),
    ("captures: {doc: {dims: [seqlen_k]}}", "3:17", "expected the field dtype"),
    ("captures: {doc: {dims: [], dtyp: int32, dtype: int32}}", "3:28", "unknown field 'dtyp'"),
    ("captures: {doc: int32}", "3:17", "expected {dims: [seqlen_k], dtype: int32}, got 'int32'"),
    ("captures: [doc]", "3:11", "captures: expected {name:"),
    ("captures: {doc: {dims: [], dtype: int32, grad: true}}", "3:48", "has no gradient"),
    ("captures: {h: {dims: [], dtype: int32}}", "3:12", "which every expression has in scope"),
    ("captures: {min: {dims: [], dtype: int32}}", "3:12", "is a function of the language"),
    ("captures: {q: {dims: [], dtype: fp32}}", "3:12", "which a call has an argument for"),
    ("captures: {batch: {dims: [], dtype: fp32}}", "3:12", "which names a size of the call"),
    ("captures: {lambda: {dims: [], dtype: fp32}}", "3:12", "a word that Python keeps"),
    ("captures: {double: {dims: [], dtype: fp32}}", "3:12", "a word that C++ keeps"),
    ("captures: {_a: {dims: [], dtype: fp32}}", "3:12", "starting with a letter"),
    ("captures: {a__b: {dims: [], dtype: fp32}}", "3:12", "single '_'"),
    ("captures: {é: {dims: [], dtype: fp32}}", "3:12", "expected a name of at most 40 letters"),
    (f"captures: {{{'a' * 41}: {{dims: [], dtype: fp32}}}}", "3:12", "at most 40 letters"),
    (
        "params: {N: {runtime: int}}\ncaptures: {t: {dims: [N], dtype: fp32}}",
        "4:23",
        "expected a compile-time param, got 'N', a run-time one",
    ),
    ("params: {N: 1.5}\ncaptures: {t: {dims: [N], dtype: fp32}}", "4:23", "positive integer"),
    ("params: {t: 1}\ncaptures: {t: {dims: [], dtype: fp32}}", "4:12", "which a param has"),
    # params
    ("params: {W: {runtime: bool}}", "3:23", "expected int or float, got 'bool'"),
    ("params: {W: {runtim: int}}", "3:14", "unknown field 'runtim'. Did you mean 'runtime'"),
    ("params: {W: '3'}", "3:13", "Write it without quotes"),
    ("params: {W: }", "3:13", "Give params.W a value"),
    ("params: {W: .nan}\nscore: W", "3:13", "expected a finite number"),
    ("params: {W: -.inf}\nscore: W", "3:13", "expected a finite number"),
    ("params: {W: 9223372036854775808}\nscore: W", "3:13", "at most 64 bits"),
    ("params: {softcap: 3}", "3:10", "which a call has an argument for"),
    # lets
    ("let: {a: c, c: h}\nscore: a", "3:10", "'c' can't be read here: a let reads only those"),
    ("let: {a: a}\nscore: a", "3:10", "'a' can't be read here"),
    ("let: {score: h}\nscore: score", "3:7", "which every expression has in scope"),
    (f"{DOC}let: {{doc: h}}\nmask: doc > 1", "4:7", "which a capture has"),
    ("params: {W: 1}\nlet: {W: h}\nmask: W > 1", "4:7", "which a param has"),
    ("let: [a]", "3:6", "let: expected {name: 'expression'}"),
    ("let: {a: [1]}", "3:10", "let.a: expected an expression in quotes, got a list"),
    ("let: {a: }", "3:10", "Give let.a a value"),
    # what is never used
    (DOC, "3:12", "captures.doc: expected a capture that mask or score reads, got 'doc'"),
    (DOC + "mask: q_idx > 0", "3:12", "Remove it, or use it."),
    ("params: {Win: 1}\nlet: {Wim: h}\nmask: Wim > 0", "3:10", "Did you mean 'Wim'?"),
    ("let: {a: h}\nmask: q_idx > 0", "3:7", "let.a: expected a let"),
    (f"{DOC}let: {{a: 'doc[0]'}}\nmask: q_idx > 0", "3:12", "captures.doc"),
    ("captures: {t: {dims: [], dtype: fp32}}\nscore: score", "3:12", "Remove it, or use it"),
    # gradients
    ("captures: {t: {dims: [], dtype: fp32, grad: true}}\nmask: t > 0", "3:45", "a mask has no"),
    (
        "captures: {t: {dims: [], dtype: fp32, grad: true}, dt: {dims: [], dtype: fp32}}\n"
        "score: t + dt",
        "3:45",
        "expected its gradient's name, dt, to be free",
    ),
    # combinations
    (f"{DOC}layout: varlen\nmask: 'doc[0] > 0'", "3:25", "expected total_k with layout: varlen"),
    (f"{DOC}layout: [dense, varlen]\nmask: 'doc[0] > 0'", "3:25", "expected total_k"),
    (
        "captures: {doc: {dims: [total_q], dtype: int32}}\nmask: doc[0] > 0",
        "3:25",
        "expected seqlen_q with layout: dense",
    ),
    ("layout: varlen\nblock_mask: {q: 128, kv: 128}", "4:1", "block_mask: expected layout: dense"),
    (
        "arch: [sm80, sm90]\ncaptures: {t: {dims: [], dtype: fp64}}\nscore: t",
        "4:33",
        "expected fp32 or narrower for sm80, sm90",
    ),
    # YAML
    ("let: {m: min(h, 3)}\nscore: m", "3:10", 'Write m: "min(h, 3)".'),
    ("let: {m: min(h, 3), n: h}\nscore: m", "3:10", 'Write m: "min(h, 3)".'),
    ("let: {m: 'h', n: clamp(h, 2, 3) + 1}\nscore: m", "3:18", 'n: "clamp(h, 2, 3) + 1".'),
    ("let: {m: doc[q_idx]}", "3:13", "Put an expression in quotes"),
    ("mask: q: 1", "3:8", "Put a value that has one in quotes"),
    ("mask: *m", "3:7", "An expression stands in quotes"),
    ("mask: !m", "3:7", "an expression stands in quotes"),
    ("mask: @m", "3:7", "No plain value starts with '@'"),
    ("mask: > 1", "3:9", "a block of text. Put an expression in quotes"),
    ("mask: 'q_idx' > 1", "3:17", "Put the whole value in quotes"),
    ("mask: - q_idx", "3:7", "Put an expression in quotes"),
    ("mask: {q_idx}", "3:7", "mask: expected an expression in quotes, got a mapping"),
    ("mask: [q_idx]", "3:7", "mask: expected an expression in quotes, got a list"),
    ("mask:", "3:6", "Give mask a value, or remove it"),
    ("score: ''", "3:8", "score: expected an expression in quotes"),
]


@pytest.mark.parametrize(("fields", "place", "says"), REFUSED)
def test_refusals_say_where_what_and_what_to_do(fields, place, says):
    message = refusal(BASE + fields)
    assert message.startswith(f"x.yaml:{place}: ")
    assert says in message


def test_a_flow_spec_split_at_a_comma():
    message = refusal("{head_dim: 64, dtype: bf16, mask: min(q_idx, 3) > 0}")
    assert message.startswith("x.yaml:1:35: mask: expected an expression in quotes")
    assert message.endswith('Write mask: "min(q_idx, 3) > 0".')


def test_the_characters_at_fault_are_underlined():
    assert refusal(EXAMPLE.replace("dist * slope", "dits * slope")).splitlines() == [
        "x.yaml:12:29: score: unknown name 'dits'. Did you mean 'dist'? Names in scope: score, b, "
        "h, h_kv, q_idx, kv_idx, q_len, kv_len, num_heads, slope, doc, cap, W, dist.",
        '  score: "cap * tanh((score - dits * slope[h]) / cap)"',
        "                              ^~~~",
    ]


WRITTEN = [
    "{field}: q_idx + zzz > 0",
    "{field}: 'q_idx + zzz > 0'",
    '{field}: "q_idx +\\t zzz > 0"',
    "{field}: >\n  q_idx +\n  zzz\n  > 0\n",
    "{field}: |-\n  q_idx\n     + zzz > 0\n",
    "{field}: q_idx\n  + zzz\n  > 0",
    "{field}: &expression 'q_idx + zzz > 0'",
]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("field", ["mask", "score", "let"])
def test_a_fault_is_found_in_every_field_however_written(written, field):
    if field == "let":
        indented = written.format(field="  a").replace("\n", "\n  ")
        text = f"{BASE}let:\n{indented}\nmask: a\n"
    else:
        text = BASE + written.format(field=field)
    message, line, caret = refusal(text).splitlines()
    _, row, column, *_ = message.split(":")
    assert text.splitlines()[int(row) - 1][int(column) - 1 :].startswith("zzz")
    assert "unknown name 'zzz'" in message
    assert line[caret.index("^") : len(caret)] == "zzz"
    assert re.fullmatch(" +\\^~~", caret)


HOSTILE = [
    "__import__('os').system('touch flag')",
    "(1).__class__",
    "score.__class__",
    "lambda: 0",
    "[x for x in (1, 2)]",
    "open('flag', 'w')",
    "eval('1')",
    "exec",
    "9**9**9",
    "(" * 10_000 + "1" + ")" * 10_000,
    "-" * 10_000 + "1",
    "1" + " + 1" * 10_000,
    "{**{}}",
    "f'{1}'",
    "await h",
    "(yield)",
    "h := 3",
    "print(h)",
    "h\x0bh",
]


@pytest.mark.parametrize("expression", HOSTILE, ids=lambda text: text[:20])
@pytest.mark.parametrize("field", ["mask", "score", "let"])
def test_hostile_expressions_are_refused_with_the_column(expression, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quoted = expression.replace("\\", "\\\\").replace('"', '\\"').replace("\x0b", "\\v")
    where = "let: {a: " if field == "let" else f"{field}: "
    text = f'{BASE}{where}"{quoted}"{"}" if field == "let" else ""}\n'
    message = refusal(text + ("mask: a\n" if field == "let" else ""))
    place = re.match(r"x\.yaml:3:(\d+): (mask|score|let\.a): ", message)
    assert place, message
    assert int(place[1]) > len(where)
    assert not list(tmp_path.iterdir())
