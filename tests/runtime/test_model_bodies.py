"""The bodies of models' calls: each is found by the key of a variant with it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from flashgen.generator.errors import SpecError
from flashgen.generator.variant import parse_key
from flashgen.runtime import bodies
from flashgen.runtime.catalogue import Catalogue, find_for_load
from flashgen.runtime.model_bodies import BodyKind, all_kinds, body_of


def test_every_kind_is_found_by_its_key():
    presets = parse_key("d64-bf16-causal")
    kinds = list(all_kinds())
    variants = [replace(presets, body=body_of(kind)) for kind in kinds]
    assert len({variant.key for variant in variants}) == len(kinds) > 80
    catalogue = Catalogue(())
    assert [catalogue.find_one(variant.key).variant for variant in variants] == variants


def test_mask_and_bias_are_one_body():
    body = body_of(BodyKind("keep", "shared", "bf16", bias_grad=True))
    assert [capture.name for capture in body.captures] == ["bias", "keep"]
    assert body.captures[0].grad and body.captures[0].dtype == "bf16"
    assert body_of(BodyKind()) is None


def test_a_key_that_ends_in_a_mask_of_pytorchs_calls():
    key = f"d16-fp32-causal{bodies.mark_of('bk', 'bool', False)}"
    assert find_for_load(key).variant == bodies.variant_of(key)
    with pytest.raises(SpecError, match="no spec at hand has"):
        find_for_load("d16-fp32-causal-00000000")
    with pytest.raises(SpecError, match="expected fp16|dtype"):
        find_for_load(key.replace("fp32", "fp31"))


def test_keys_are_found_without_torch():
    key = f"d16-fp32{bodies.mark_of('bk', 'bool', False)}"
    code = (
        "import sys; from flashgen.runtime.catalogue import find_for_load; "
        f"find_for_load({key!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
