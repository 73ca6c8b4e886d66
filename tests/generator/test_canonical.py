"""Hashes of bodies: what is in them, what is not, and that they never move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.spec import load_specs

BASE = "head_dim: 64\ndtype: bf16\n"
CAPTURES = "captures: {s: {dims: [num_heads], dtype: fp32}, d: {dims: [seqlen_k], dtype: int32}}\n"


def key_of(text):
    (spec,) = load_specs(BASE + text, "x.yaml")
    (key,) = spec.keys
    return key


def hash_of(text):
    return key_of(text).removeprefix("d64-bf16-")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # the names of lets, and whether there are any
        ("score: score - (q_idx - kv_idx)", "let: {x: q_idx - kv_idx}\nscore: score - x"),
        ("let: {x: h, y: x + 1}\nscore: score * y", "let: {u: h + 1}\nscore: score * u"),
        # compile-time params are their values
        ("mask: q_idx < 64", "params: {W: 64}\nmask: q_idx < W"),
        ("params: {A: 64}\nmask: q_idx < A", "params: {W: 64}\nmask: q_idx < W"),
        # spelling
        ("mask: (q_idx) <  64", "mask: 'q_idx<0x40'"),
        ("score: where(h > 1, score, 0)", "score: score if h > 1 else 0.0"),
        ("mask: 0 <= h < 4", "mask: 0 <= h and h < 4"),
        ("score: 2 * score", "score: 2.0 * score"),
        # the order of fields and declarations
        (
            f"{CAPTURES}score: score + s[h]\nmask: d[kv_idx] > 0",
            "mask: d[kv_idx] > 0\nscore: score + s[h]\n"
            "captures: {d: {dtype: int32, dims: [seqlen_k]}, s: {dtype: fp32, dims: [num_heads]}}",
        ),
        # what is no part of the function
        ("mask: q_idx < 64", "mask: q_idx < 64\ntuning: {cpu: {forward: {isa: native}}}"),
        ("mask: q_idx < 64", "mask: q_idx < 64\npasses: forward\narch: [sm80]"),
    ],
)
def test_two_ways_to_write_one_body(one, other):
    assert key_of(one) == key_of(other)
    assert len(hash_of(one)) == 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mask: q_idx < 64", "mask: q_idx < 65"),
        ("mask: q_idx < 64", "mask: q_idx <= 64"),
        ("mask: q_idx < kv_idx", "mask: kv_idx < q_idx"),
        ("score: score - (h - b)", "score: score - h - b"),
        ("score: h // 2", "score: h // 2.0"),
        ("score: h / 2", "score: h // 2"),
        ("params: {a: {runtime: int}}\nscore: a", "params: {a: {runtime: float}}\nscore: a"),
        # a call names captures and run-time params
        ("params: {a: {runtime: int}}\nscore: a", "params: {c: {runtime: int}}\nscore: c"),
        (
            "captures: {s: {dims: [4], dtype: fp32}}\nscore: s[0]",
            "captures: {t: {dims: [4], dtype: fp32}}\nscore: t[0]",
        ),
        (
            "captures: {s: {dims: [4], dtype: fp32}}\nscore: s[0]",
            "captures: {s: {dims: [5], dtype: fp32}}\nscore: s[0]",
        ),
        (
            "captures: {s: {dims: [4], dtype: fp32}}\nscore: s[0]",
            "captures: {s: {dims: [4], dtype: fp16}}\nscore: s[0]",
        ),
        (
            "captures: {s: {dims: [4], dtype: fp32}}\nscore: s[0]",
            "captures: {s: {dims: [4], dtype: fp32, grad: true}}\nscore: s[0]",
        ),
    ],
)
def test_two_bodies_have_two_hashes(one, other):
    assert hash_of(one) != hash_of(other)


def test_hashes_never_move():
    """Keys are stored by people: a change here breaks what they have stored."""
    assert key_of("causal: true\nmask: 0 <= q_idx - kv_idx < 4096") == ("d64-bf16-causal-2f2edb2a")
    text = f"{CAPTURES}score: score + s[h] * float(d[kv_idx])"
    assert hash_of(text) == "6508c777"


@given(st.permutations(["captures", "let", "mask", "score", "params", "softcap"]))
def test_the_order_of_fields_never_matters(order):
    fields = {
        "captures": CAPTURES.strip(),
        "params": "params: {W: 8, c: {runtime: float}}",
        "let": "let: {x: 's[h]', y: x * W}",
        "mask": "mask: d[kv_idx] < W",
        "score": "score: score + y * c",
        "softcap": "softcap: 30",
    }
    text = "\n".join(fields[name] for name in order)
    assert key_of(text) == key_of("\n".join(fields.values()))
