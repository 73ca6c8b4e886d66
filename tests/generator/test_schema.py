"""The JSON Schema: itself valid, described, and of one mind with the loader."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.errors import SpecError
from flashgen.generator.schema import json_schema
from flashgen.generator.spec import load_specs
from flashgen.generator.spec_fields import SpecFields
from flashgen.generator.yaml_source import read_documents

SHIPPED = sorted(Path(str(resources.files("flashgen.specs"))).rglob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def test_is_a_schema_of_its_dialect():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$schema"].endswith("/draft/2020-12/schema")
    json.dumps(json_schema())


def test_defaults_are_valid():
    (spec,) = [d for name, d in json_schema()["$defs"].items() if name == "SpecFields"]
    for name, field in spec["properties"].items():
        if "default" in field:
            holder = {"head_dim": 64, "dtype": "bf16", name: field["default"]}
            assert VALIDATOR.is_valid(holder), name


def test_every_field_is_described():
    for name, definition in json_schema()["$defs"].items():
        assert definition["additionalProperties"] is False, name
        assert definition["description"], name
        for field, schema in definition["properties"].items():
            assert schema.get("description"), f"{name}.{field}"
    assert set(json_schema()["$defs"]["SpecFields"]["properties"]) == set(
        SpecFields.__struct_fields__
    )


def test_limits_are_in_it():
    sizes = json_schema()["$defs"]["HeadDims"]["properties"]["qk"]
    assert (sizes["minimum"], sizes["maximum"], sizes["multipleOf"]) == (8, 256, 8)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_shipped_specs_are_valid(file):
    for document in read_documents(file.read_text(encoding="utf-8"), str(file)):
        VALIDATOR.validate(document.plain())


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 100},
        {"head_dim": 264},
        {"head_dim": "64"},
        {"head_dim": []},
        {"head_dim": {"qk": 64}},
        {"head_dim": {"qk": 64, "v": 64, "w": 1}},
        {"dtype": "bfloat16"},
        {"dtype": ["bf16", "bf16"]},
        {"causal": "yes"},
        {"causal": 1},
        {"dropout": {"bits": 9}},
        {"passes": "fwd"},
        {"arch": "foo"},
        {"arch": []},
        {"name": "a b"},
        {"tuning": {"sm80": {"fwd": {}}}},
        {"tuning": {"sm80": {"forward": {"tile_m": 6.5}}}},
        {"causel": True},
        {"window": True},
        {"window": {"left": -1}},
        {"window": "rt"},
        {"softcap": 0},
        {"softcap": True},
        {"causal": "bottom_right"},
        {"layout": "paged"},
        {"sink": {"per": "batch"}},
        {"block_mask": {"q": 100, "kv": 128}},
        {"block_mask": True},
        {"captures": {"doc": {"dims": ["seqlen_k"]}}},
        {"captures": {"2": {"dims": [], "dtype": "fp32"}}, "score": "score"},
        {"params": {"W": {"runtime": "bool"}}},
        {"let": {"a": None}},
        {"mask": []},
    ],
    ids=str,
)
def test_refuses_what_the_loader_refuses(change):
    spec = {"head_dim": 64, "dtype": "bf16"} | change
    assert not VALIDATOR.is_valid(spec)
    with pytest.raises(SpecError):
        load_specs(json.dumps(spec), "x.yaml")


SIZES = st.sampled_from([8, 64, 256]) | st.fixed_dictionaries(
    {"qk": st.sampled_from([64, 192]), "v": st.just(128)}
)
SPECS = st.fixed_dictionaries(
    {"head_dim": SIZES, "dtype": st.sampled_from(["bf16", "fp16", ["bf16", "fp64"]])},
    optional={
        "arch": st.sampled_from(["cpu", ["cpu", "sm80"], [80, 9.0, "cpu"]]),
        "dropout": st.sampled_from([True, {"bits": 16}, [True, False]]),
        "passes": st.sampled_from(["forward", ["forward", "backward"]]),
        "tuning": st.sampled_from([{}, {"cpu": {"forward": {"tile_m": 48}}}]),
        "causal": st.sampled_from([True, "top_left", [False, "top_left"]]),
        "window": st.sampled_from([False, "runtime", {"left": 0}, [{"right": 4, "left": None}]]),
        "softcap": st.sampled_from([False, "runtime", 50, 0.5, [30, 50.0]]),
        "alibi": st.sampled_from([True, [True, False]]),
        "sink": st.sampled_from([True, {"per": "head"}, {"per": "head", "grad": False}]),
        "layout": st.sampled_from(["dense", "varlen", ["dense", "varlen"]]),
        "captures": st.just({"bias": {"dims": ["num_heads", "W"], "dtype": "fp32", "grad": True}}),
    },
)


@given(SPECS)
def test_accepts_what_the_loader_accepts(spec):
    if "captures" in spec:  # and what uses them
        params = {"W": 64, "cap": {"runtime": "float"}}
        lets = {"near": "abs(q_idx - kv_idx)"}
        spec |= {
            "params": params,
            "let": lets,
            "mask": True,
            "score": "score + cap * bias[h, near]",
        }
    VALIDATOR.validate(spec)
    VALIDATOR.validate([spec])
    load_specs(yaml.safe_dump(spec), "x.yaml")
