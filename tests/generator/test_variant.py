"""Keys: readable, complete, canonical, and parsed back."""

from __future__ import annotations

import itertools
import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.body import Body
from flashgen.generator.errors import SpecError
from flashgen.generator.ir.nodes import Const
from flashgen.generator.variant import (
    DTYPES,
    MAX_BLOCK,
    MAX_KEY_CHARS,
    MAX_SOFTCAP,
    MAX_WINDOW,
    MIN_SOFTCAP,
    Variant,
    Window,
    canonical_key,
    check_head_dim,
    parse_key,
)

BODY = Body(mask=Const(False))
SIZES = st.integers(1, 32).map(lambda n: 8 * n)
BOUNDS = st.none() | st.integers(0, MAX_WINDOW)
BLOCKS = st.integers(1, MAX_BLOCK // 16).map(lambda n: 16 * n)
VARIANTS = st.builds(
    Variant,
    head_dim=SIZES,
    head_dim_v=SIZES,
    dtype=st.sampled_from(DTYPES),
    causal=st.sampled_from([False, True, "top_left"]),
    dropout_bits=st.sampled_from([0, 8, 16]),
    deterministic=st.booleans(),
    layout=st.sampled_from(["dense", "varlen"]),
    window=st.sampled_from([None, Window(runtime=True)])
    | st.builds(Window, BOUNDS, BOUNDS).filter(lambda window: window != Window()),
    softcap=st.sampled_from([None, "runtime", 1.0, 50.0, 0.5])
    | st.floats(MIN_SOFTCAP, MAX_SOFTCAP),
    alibi=st.booleans(),
    sink=st.sampled_from(["", "learned", "fixed"]),
    block_mask=st.none() | st.tuples(BLOCKS, BLOCKS),
)


@pytest.mark.parametrize(
    ("key", "variant"),
    [
        ("d128-bf16-causal", Variant(128, 128, "bf16", causal=True)),
        ("d64-fp16-causal-dropout", Variant(64, 64, "fp16", causal=True, dropout_bits=8)),
        ("d128v64-bf16-causal-det", Variant(128, 64, "bf16", True, 0, True)),
        ("d8-fp32-dropout16", Variant(8, 8, "fp32", dropout_bits=16)),
        ("d64v128-fp64", Variant(64, 128, "fp64")),
        ("d64-bf16-varlen-causaltl", Variant(64, 64, "bf16", "top_left", layout="varlen")),
        ("d64-bf16-window4096x0", Variant(64, 64, "bf16", window=Window(4096, 0))),
        ("d64-bf16-windowinfx0", Variant(64, 64, "bf16", window=Window(None, 0))),
        ("d64-bf16-windowrt", Variant(64, 64, "bf16", window=Window(runtime=True))),
        ("d64-bf16-softcap50", Variant(64, 64, "bf16", softcap=50.0)),
        ("d64-bf16-softcap0.5-alibi", Variant(64, 64, "bf16", softcap=0.5, alibi=True)),
        ("d64-bf16-softcap1000000", Variant(64, 64, "bf16", softcap=1e6)),
        ("d64-bf16-softcaprt-sink", Variant(64, 64, "bf16", softcap="runtime", sink="learned")),
        ("d64-bf16-sinkfixed", Variant(64, 64, "bf16", sink="fixed")),
        (
            "d64-bf16-causal-blockmask128x64-dropout-det",
            Variant(64, 64, "bf16", True, 8, True, block_mask=(128, 64)),
        ),
    ],
)
def test_examples(key, variant):
    assert variant.key == key
    assert parse_key(key) == variant


@given(VARIANTS)
def test_a_key_parses_back(variant):
    assert parse_key(variant.key) == variant
    assert canonical_key(variant.key) == variant.key
    assert re.fullmatch(r"[a-z0-9.-]+", variant.key)
    assert len(variant.key) <= MAX_KEY_CHARS


@given(VARIANTS, VARIANTS)
def test_different_variants_have_different_keys(one, other):
    assert (one.key == other.key) == (one == other)


@given(VARIANTS)
def test_a_body_adds_its_hash_and_only_the_catalogue_finds_it(variant):
    key = replace(variant, body=BODY).key
    assert re.fullmatch(re.escape(variant.key) + "-[0-9a-f]{8}", key)
    with pytest.raises(SpecError, match="no spec at hand has. Add the spec's folder by --specs"):
        parse_key(key)


@given(VARIANTS, st.randoms(use_true_random=False))
def test_the_order_of_parts_is_found_again(variant, random):
    parts = variant.key.split("-")
    random.shuffle(parts)
    assert canonical_key("_".join(parts).upper()) == variant.key


def test_every_field_is_in_the_key():
    base = Variant(128, 64, "bf16", causal=True, dropout_bits=8, deterministic=True)
    other = Variant(
        64,
        72,
        "fp16",
        layout="varlen",
        window=Window(4096, 0),
        softcap=0.5,
        alibi=True,
        sink="learned",
        block_mask=(128, 64),
        body=BODY,
    )
    for field in fields(Variant):
        changed = replace(base, **{field.name: getattr(other, field.name)})
        assert changed.key != base.key, field.name


def test_a_key_is_computed_once(monkeypatch):
    variant = Variant(64, 64, "fp16", body=BODY)
    key = variant.key
    assert replace(variant) == variant and hash(replace(variant)) == hash(variant)
    monkeypatch.setattr("flashgen.generator.variant.body_hash", lambda _: 1 / 0)
    assert variant.key is key
    with pytest.raises(ZeroDivisionError):
        replace(variant)
    with pytest.raises(FrozenInstanceError):
        variant.key = "d64-fp16"


def test_no_two_variants_share_a_key():
    sizes = (8, 64, 128)
    every = [
        Variant(*point)
        for point in itertools.product(
            sizes, sizes, DTYPES, (False, True), (0, 8, 16), (False, True)
        )
    ]
    assert len({v.key for v in every}) == len(every)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("d064-bf16", "expected the key 'd64-bf16'"),
        ("d128v128-bf16-causal", "expected the key 'd128-bf16-causal'"),
        ("d128v0128-bf16", "expected the key 'd128-bf16'"),
        ("d128-causal-bf16", "Did you mean 'd128-bf16-causal'"),
        ("D128_bf16_causal", "Did you mean 'd128-bf16-causal'"),
        ("d128-bf16-casual", "Did you mean 'd128-bf16-causal'"),
        ("d64-fp16-dropout-causal", "Did you mean 'd64-fp16-causal-dropout'"),
        ("d64-bfloat16", "Did you mean 'bf16'"),
        ("d64-fp8", "expected one of fp16, bf16, fp32, fp64"),
        ("d64-fp16-dropout8", "Did you mean 'd64-fp16-dropout"),
        ("d100-bf16", "Pad the head dimension to 104"),
        ("d128v300-bf16", "Split the head"),
        ("d0-bf16", "got 0"),
        ("d64-bf16-softcap50.0", "expected the key 'd64-bf16-softcap50'"),
        ("d64-bf16-softcap050", "expected the key 'd64-bf16-softcap50'"),
        ("d64-bf16-softcap0", "softcap: expected a number from 0.001"),
        ("d64-bf16-softcap2000000", "Leave out a cap that never binds"),
        ("d64-bf16-softcap", "Did you mean 'd64-bf16-softcaprt'"),
        ("d64-bf16-windowinfxinf", "Leave out a window without bounds"),
        ("d64-bf16-window9999999999x0", "expected a bound up to 1073741823"),
        ("d64-bf16-window010x0", "expected the key 'd64-bf16-window10x0'"),
        ("d64-bf16-window4096", "expected a key such as"),
        ("d64-bf16-blockmask100x128", "expected multiples of 16"),
        ("d64-bf16-alibi-causal", "Did you mean 'd64-bf16-causal-alibi'"),
        ("d64-bf16-causal-varlen", "Did you mean 'd64-bf16-varlen-causal'"),
        ("d64-bf16-sinks", "Did you mean 'd64-bf16-sink'"),
        ("d64-bf16-0123abcd", "no spec at hand has"),
        ("d100-bf16-0123abcd", "Pad the head dimension"),
        ("d64-bf16-0123abcde", "expected a key such as"),
        ("d64", "expected a key such as"),
        ("d64-bf16\n", "expected a key such as"),
        ("d٦٤-bf16", "expected a key such as"),
        ("", "expected a key such as"),
        ("d" + "9" * 5000 + "-bf16", "characters"),
    ],
)
def test_refusals_name_the_right_key(key, says):
    with pytest.raises(SpecError) as caught:
        parse_key(key)
    assert says in str(caught.value)


@given(st.text("dv0123456789-bfp16causaldropoutdet_", max_size=30))
def test_what_parses_is_canonical(text):
    try:
        variant = parse_key(text)
    except SpecError:
        return
    assert variant.key == text


def test_head_dims():
    for size in range(-16, 300):
        legal = size in range(8, 257, 8)
        if legal:
            check_head_dim(size, where="here")
        else:
            with pytest.raises(SpecError, match=f"here: head_dim: .*got {size}"):
                check_head_dim(size, where="here")
