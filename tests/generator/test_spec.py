"""Specs: what they stand for, whatever their order; and each refusal with its place and remedy."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.errors import SpecError
from flashgen.generator.expand import MAX_VARIANTS
from flashgen.generator.spec import load_specs
from flashgen.generator.spec_fields import EXPECTED, SpecFields
from flashgen.generator.variant import Variant

BASE = "head_dim: 64\ndtype: bf16\n"


def one(text):
    (spec,) = load_specs(text, "specs/x.yaml")
    return spec


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("layout: varlen", "d64-bf16-varlen"),
        ("layout: dense", "d64-bf16"),
        ("causal: top_left", "d64-bf16-causaltl"),
        ("window: {left: 4096, right: 0}", "d64-bf16-window4096x0"),
        ("window: {left: 4096}", "d64-bf16-window4096xinf"),
        ("window: {left: null, right: 0}", "d64-bf16-windowinfx0"),
        ("window: runtime", "d64-bf16-windowrt"),
        ("window: false", "d64-bf16"),
        ("softcap: 50", "d64-bf16-softcap50"),
        ("softcap: 1e-2", "d64-bf16-softcap0.01"),
        ("softcap: runtime", "d64-bf16-softcaprt"),
        ("softcap: false", "d64-bf16"),
        ("alibi: true", "d64-bf16-alibi"),
        ("sink: true", "d64-bf16-sink"),
        ("sink: {per: head}", "d64-bf16-sink"),
        ("sink: {per: head, grad: false}", "d64-bf16-sinkfixed"),
        ("sink: false", "d64-bf16"),
        ("block_mask: {q: 128, kv: 64}", "d64-bf16-blockmask128x64"),
    ],
)
def test_presets(field, key):
    assert one(BASE + field).keys == (key,)


def test_the_smallest_spec():
    spec = one(BASE)
    assert spec.name == "x"
    assert spec.variants == (Variant(64, 64, "bf16"),)
    assert spec.arch == ()
    assert spec.passes == ("forward", "backward")
    assert spec.tuning == ()
    assert spec.where == "specs/x.yaml:1"


def test_every_field():
    spec = one(
        """
        tuning:
          cpu: {backward: {isa: native}}
          sm_80: {forward: {tile_m: 64, num_warps: 4}}
        deterministic: true
        dropout: {bits: 16}
        causal: true
        passes: [backward, forward]
        arch: [90, 8.0, cpu]
        dtype: bf16
        head_dim: {qk: 192, v: 128}
        name: mine
        """
    )
    assert spec.keys == ("d192v128-bf16-causal-dropout16-det",)
    assert spec.name == "mine"
    assert spec.arch == ("sm90", "sm80", "cpu")
    assert spec.passes == ("forward", "backward")
    assert spec.pins_for("sm80", "forward") == (("num_warps", 4), ("tile_m", 64))
    assert spec.pins_for("cpu", "backward") == (("isa", "native"),)
    assert spec.pins_for("sm80", "backward") == spec.pins_for("cpu", "forward") == ()
    assert spec.line == 2
    assert hash(spec) == hash(spec)


def test_every_list_is_an_axis():
    spec = one(
        BASE + "layout: [dense, varlen]\ncausal: [false, true, top_left]\nwindow: [false, runtime, "
        "{left: 8}]\nsoftcap: [false, 50, runtime]\nalibi: [false, true]\nsink: true\n"
    )
    assert len(set(spec.keys)) == 2 * 3 * 3 * 3 * 2
    assert "d64-bf16-varlen-causaltl-window8xinf-softcap50-alibi-sink" in spec.keys
    assert all(key.endswith("-sink") for key in spec.keys)


def test_lists_are_a_matrix():
    spec = one(
        "head_dim: [64, {qk: 192, v: 128}]\ndtype: [fp16, bf16]\ncausal: [true, false]\n"
        "dropout: [false, true, {bits: 16}]\ndeterministic: [false, true]\n"
    )
    assert len(set(spec.keys)) == 2 * 2 * 2 * 3 * 2
    assert "d192v128-bf16-causal-dropout16-det" in spec.keys
    assert spec.keys[0] == "d64-fp16-causal"


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("head_dim: 64", "head_dim: {v: 64, qk: 64}"),
        ("dropout: true", "dropout: {bits: 8}"),
        ("causal: false", ""),
        ("passes: [forward, backward]", ""),
        ("dtype: bf16", "dtype: [bf16]"),
        ("dtype: bf16", 'dtype: "bf16"'),
        ("arch: [8.0]", "arch: sm_80"),
        ("tuning: {80: {forward: {tile_m: 64}}}", "tuning: {sm80: {forward: {tile_m: 64}}}"),
    ],
)
def test_two_ways_to_write_one_thing(short, long):
    texts = []
    for line in (short, long):
        field = line.partition(":")[0]
        base = [part for part in BASE.splitlines() if not part.startswith(f"{field}:")]
        texts.append("\n".join([line, *base]))
    one_way, other_way = (one(text) for text in texts)
    assert one_way.variants == other_way.variants
    assert (one_way.arch, one_way.passes) == (other_way.arch, other_way.passes)
    assert one_way.pins_for("sm80", "forward") == other_way.pins_for("sm80", "forward")


SPECS = st.fixed_dictionaries(
    {
        "head_dim": st.sampled_from([8, 64, 256, {"qk": 192, "v": 128}, [64, {"qk": 8, "v": 16}]]),
        "dtype": st.sampled_from(["bf16", "fp32", ["fp16", "bf16"]]),
    },
    optional={
        "name": st.sampled_from(["mine", "a-b.c"]),
        "causal": st.sampled_from([True, False, [True, False]]),
        "dropout": st.sampled_from([True, False, {"bits": 8}, {"bits": 16}, [False, True]]),
        "deterministic": st.booleans(),
        "arch": st.sampled_from(["cpu", ["sm80", "cpu"], ["8.0", "cpu"]]),
        "passes": st.sampled_from(["forward", ["backward", "forward"]]),
        "tuning": st.just({"cpu": {"forward": {"vector_bytes": 32, "isa": "native"}}}),
    },
)


@given(SPECS, st.randoms(use_true_random=False), st.sampled_from([None, False, True]))
def test_order_and_layout_never_matter(fields, random, flow):
    items = list(fields.items())
    random.shuffle(items)
    shuffled = one(yaml.safe_dump(dict(items), sort_keys=False, default_flow_style=flow))
    straight = one(json.dumps(fields))
    assert shuffled.variants == straight.variants
    assert (shuffled.name, shuffled.arch, shuffled.passes) == (
        straight.name,
        straight.arch,
        straight.passes,
    )
    assert shuffled.pins_for("cpu", "forward") == straight.pins_for("cpu", "forward")


def test_several_specs_in_a_file():
    listed = "- {name: a, head_dim: 64, dtype: bf16}\n- {name: b, head_dim: 8, dtype: fp16}\n"
    documents = "name: a\nhead_dim: 64\ndtype: bf16\n---\nname: b\nhead_dim: 8\ndtype: fp16\n"
    for text in (listed, documents):
        specs = load_specs(text, "x.yaml")
        assert [(s.name, s.keys) for s in specs] == [("a", ("d64-bf16",)), ("b", ("d8-fp16",))]


REFUSED = [
    ("", "1:1", "got an empty file. Write at least"),
    ("# nothing\n", "1:1", "got an empty file"),
    ("[]", "1:1", "got an empty list"),
    ("3", "1:1", "expected a spec (fields such as"),
    ("head_dim\n", "1:1", "expected a spec (fields such as"),
    ("- 3\n", "1:3", "expected a spec"),
    # names of fields
    (BASE + "causel: true", "3:1", "Did you mean 'causal'? Allowed fields: name, head_dim"),
    (BASE + "Causal: true", "3:1", "Did you mean 'causal'"),
    (BASE + "zzz: true", "3:1", "unknown field 'zzz'. Allowed fields: name, head_dim"),
    (BASE + "'zz` - at `$.head_dim': 1", "3:1", "unknown field 'zz` - at `$.head_dim'"),
    (BASE + "<<: {causal: true}", "3:1", "unknown field '<<'"),
    ("head_dim: {qk: 64, w: 64}\ndtype: bf16", "1:20", "Allowed fields: qk, v."),
    ("head_dim: 64\n", "1:1", "expected the field dtype, got none. Add 'dtype:'"),
    ("dtype: bf16\n", "1:1", "expected the field head_dim"),
    ("head_dim: {qk: 64}\ndtype: bf16", "1:11", "expected the field v"),
    # values
    ("head_dim: 100\ndtype: bf16", "1:11", "got 100. Pad the head dimension to 104."),
    ("head_dim: [64, 300]\ndtype: bf16", "1:16", "head_dim[1]: expected a multiple of 8"),
    ("head_dim: {qk: 192, v: 12}\ndtype: bf16", "1:24", "head_dim.v: expected a multiple of 8"),
    ("head_dim: 0\ndtype: bf16", "1:11", "got 0."),
    ("head_dim: 8.0\ndtype: bf16", "1:11", "got 8.0. Write 8."),
    ("head_dim: true\ndtype: bf16", "1:11", "got true"),
    ("head_dim: '64'\ndtype: bf16", "1:11", "got '64'. Write it without quotes."),
    ("head_dim:\ndtype: bf16", "1:10", "Give head_dim a value, or remove it."),
    ("head_dim: []\ndtype: bf16", "1:11", "got an empty list"),
    ("head_dim: [[64]]\ndtype: bf16", "1:12", "got a list"),
    ("head_dim: 64\ndtype: bfloat16", "2:8", "got 'bfloat16'. Did you mean 'bf16'?"),
    ("head_dim: 64\ndtype: [bf16, torch.half]", "2:15", "Did you mean 'fp16'?"),
    (BASE + "causal: yes", "3:9", "got 'yes'. Write true."),
    (BASE + "causal: Off", "3:9", "got 'Off'. Write false."),
    (BASE + "causal: 1", "3:9", "expected true, false, top_left, or a list of these, got 1."),
    (BASE + "deterministic: 'true'", "3:16", "Write it without quotes."),
    (BASE + "dropout: {bits: 9}", "3:17", "dropout.bits: expected 8 or 16, got 9."),
    (BASE + "dropout: 0.1", "3:10", "expected true, false, {bits: 8}"),
    (BASE + "passes: fwd", "3:9", "Did you mean 'forward'?"),
    (BASE + "passes: []", "3:9", "got an empty list"),
    (BASE + "name: a b", "3:7", "expected a name of letters"),
    (BASE + "name: ''", "3:7", "expected a name of letters"),
    (BASE + "name: 3", "3:7", "expected a name of letters"),
    (BASE + "name: d64-fp16", "3:7", "isn't another variant's key"),
    (BASE + "name: d64-bf16-0123abcd", "3:7", "isn't another variant's key"),
    (BASE + "name: d64-bf16-varlen", "3:7", "isn't another variant's key"),
    # presets
    (BASE + "window: 4096", "3:9", "expected {left: 4096, right: 0}, runtime, false"),
    (BASE + "window: true", "3:9", "got true"),
    (BASE + "window: {left: -1}", "3:16", "got -1. Leave the bound out for none."),
    (BASE + "window: {left: 1073741824}", "3:16", "an integer from 0 to 1073741823"),
    (BASE + "window: {left: 8.0}", "3:16", "Write 8."),
    (BASE + "window: {}", "3:9", "got neither. Give one, or write false."),
    (BASE + "window: [runtime, {right: null}]", "3:19", "got neither"),
    (BASE + "window: [{left: 4}, {left: 4, right: null}]", "3:21", "what window[0] means"),
    (BASE + "window: {lef: 4}", "3:10", "Did you mean 'left'?"),
    (BASE + "window: run-time", "3:9", "Did you mean 'runtime'?"),
    (BASE + "softcap: -1", "3:10", "expected a number from 0.001 to 1000000"),
    (BASE + "softcap: 0", "3:10", "expected a number from 0.001 to 1000000"),
    (BASE + "softcap: .inf", "3:10", "expected a number from 0.001 to 1000000"),
    (BASE + "softcap: .nan", "3:10", "expected a number from 0.001 to 1000000"),
    (BASE + "softcap: 1e999", "3:10", "expected a number from 0.001 to 1000000"),
    (BASE + "softcap: '50'", "3:10", "Write it without quotes."),
    (BASE + "softcap: true", "3:10", "got true"),
    (BASE + "softcap: [50, 50.0]", "3:15", "what softcap[0] means already"),
    (BASE + "alibi: yes", "3:8", "Write true."),
    (BASE + "sink: learned", "3:7", "expected true, false or {per: head, grad: true}"),
    (BASE + "sink: {per: batch}", "3:13", "sink.per: expected head, got 'batch'"),
    (BASE + "sink: {grad: true}", "3:7", "expected the field per, got none. Add 'per:' (head)"),
    (BASE + "sink: {per: head, grad: no}", "3:25", "sink.grad: expected true or false, got 'no'"),
    (BASE + "block_mask: 128", "3:13", "expected {q: 128, kv: 128}"),
    (BASE + "block_mask: {q: 100, kv: 128}", "3:17", "expected a multiple of 16 from 16 to 4096"),
    (BASE + "block_mask: {q: 128}", "3:13", "expected the field kv"),
    (BASE + "causal: bottom_right", "3:9", "expected true, false, top_left"),
    (BASE + "causal: topleft", "3:9", "Did you mean 'top_left'?"),
    (BASE + "layout: paged", "3:9", "reserved for a later release; use dense or varlen"),
    (BASE + "layout: ragged", "3:9", "expected dense, varlen"),
    ("head_dim: 64\ndtype: fp8_e4m3", "2:8", "fp8 is reserved for a later release"),
    # repeats
    (BASE + "causal: [true, true]", "3:16", "what causal[0] means already"),
    (BASE + "dropout: [true, {bits: 8}]", "3:17", "what dropout[0] means already"),
    ("head_dim: [64, {qk: 64, v: 64}]\ndtype: bf16", "1:16", "what head_dim[0] means already"),
    (BASE + "head_dim: 8", "3:1", "duplicate key, first on line 1"),
    # targets
    (BASE + "arch: [80, sm81]", "3:12", "got 'sm81'. Did you mean 'sm80'?"),
    (BASE + "arch: foo", "3:7", "expected one of cpu, sm75, sm80"),
    (BASE + "arch: sm70", "3:7", "CUDA 13 starts at sm75"),
    (BASE + "arch: native", "3:7", "goes with --arch alone"),
    (BASE + "arch: [80, sm_80]", "3:12", "what arch[0] means already"),
    (BASE + "arch: true", "3:7", "expected one of cpu, sm75, sm80"),
    (BASE + "arch:", "3:6", "Give arch a value, or remove it."),
    ("head_dim: 64\ndtype: fp32\narch: [sm80]", "2:8", "which runs on cpu only"),
    ("head_dim: 64\ndtype: [bf16, fp64]\narch: 80", "2:15", "Add cpu to arch"),
    # tuning
    (BASE + "tuning: 3", "3:9", "expected {target: {forward:"),
    (BASE + "tuning: {sm80: 3}", "3:16", "tuning.sm80: expected {target:"),
    (BASE + "tuning: {sm80: {forward: [1]}}", "3:26", "tuning.sm80.forward: expected"),
    (BASE + "tuning: {sm80: {fwd: {}}}", "3:17", "Allowed fields: forward, backward."),
    (BASE + "tuning: {sm80: {forward: {tile_m: 6.5}}}", "3:35", "tile_m: expected an integer"),
    (BASE + "tuning: {sm99: {}}", "3:10", "tuning: expected one of cpu"),
    (BASE + "tuning: {80: {}, sm80: {}}", "3:18", "means sm80, as '80' above does"),
    (BASE + "tuning: {80: {forward: {tile_z: 1}}}", "3:25", "expected one of tile_m, tile_n"),
    (BASE + "tuning: {80: {forward: {tile_m: x}}}", "3:25", "expected a positive integer, got 'x'"),
    (BASE + "tuning: {80: {forward: {tile_m: 0}}}", "3:25", "expected a positive integer, got 0"),
    (
        BASE + "tuning: {80: {forward: {tile_m: 7}}}",
        "3:25",
        "tuning of d64-bf16: fwd_d64_",
    ),
    # several in a file
    (f"{BASE}---\n{BASE}", "1:1", "expected a name in a file of several specs"),
    (f"name: a\n{BASE}---\nname: a\n{BASE}", "5:7", "which the spec on line 1 has"),
]


@pytest.mark.parametrize(("text", "place", "says"), REFUSED)
def test_refusals_say_where_what_and_what_to_do(text, place, says):
    with pytest.raises(SpecError) as caught:
        load_specs(text, "specs/x.yaml")
    assert str(caught.value).startswith(f"specs/x.yaml:{place}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_huge_matrix_is_refused_with_a_way_out():
    sizes = ", ".join(f"{{qk: {qk}, v: {v}}}" for qk in range(8, 257, 8) for v in range(8, 257, 8))
    text = f"head_dim: [{sizes}]\ndtype: [fp16, bf16]\ncausal: [true, false]\n"
    assert len(one(text).variants) == MAX_VARIANTS == 4096
    with pytest.raises(SpecError, match=r"at most 4096 variants, got 8192\. Shorten its lists"):
        one(text + "dropout: [false, true]\n")


def test_a_hundred_thousand_points_are_refused():
    with pytest.raises(SpecError, match="Split it into several files"):
        one(f"dtype: bf16\nhead_dim: [{', '.join(['64'] * 100_000)}]\n")


def test_nothing_in_a_spec_is_run(tmp_path):
    flag = tmp_path / "flag"
    call = (
        f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{flag}']]"
    )
    for text in (call, f"{BASE}name: {call}", f"{BASE}{call}: 1"):
        with pytest.raises(SpecError):
            one(text)
    assert not flag.exists()


FRAGMENTS = st.sampled_from(
    [
        *SpecFields.__struct_fields__,
        *("window", "qk", "v", "bits", "forward", "tile_m", "sm80", "8.0", "yes", "true", "64"),
        *("bf16", "100", "1e-3", "{", "}", "[", "]", ": ", ", ", "\n", "- ", "'", "---\n", "&a "),
        *("dims", "runtime", "left", "per", "grad", "int32", "seqlen_k", "q_idx", "kv_idx", " < "),
        *("score", " + ", "(", ")", "min(", "|\n  ", ">\n  ", '"', "\n  ", "mask: ", "let: {a: "),
    ]
)


@given(st.lists(FRAGMENTS, max_size=25).map("".join))
def test_any_mix_gives_specs_or_a_spec_error(text):
    for prefix in ("", BASE):
        try:
            load_specs(prefix + text, "x.yaml")
        except SpecError as error:
            assert re.match(r"x\.yaml:\d+:\d+: \S", str(error))


def test_each_field_has_words_for_what_it_takes():
    assert set(EXPECTED) == set(SpecFields.__struct_fields__)


def test_an_expression_that_is_too_long_says_how_long_it_may_be():
    text = "(" * 10_000 + "score" + ")" * 10_000
    with pytest.raises(SpecError, match=r"^x.yaml:3:8: score: .* Shorten it to 4000 characters"):
        load_specs(f"head_dim: 64\ndtype: bf16\nscore: '{text}'\n", "x.yaml")
