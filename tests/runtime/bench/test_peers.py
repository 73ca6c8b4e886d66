from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from flashgen.generator.errors import ArgumentError
from flashgen.generator.variant import parse_key
from flashgen.runtime.bench.cells import Cell
from flashgen.runtime.bench.contest import Calls
from flashgen.runtime.bench.peers import PEERS, Refusal, peers_named
from flashgen.runtime.bench.peers.flash_attn import (
    FlashAttention2,
    FlashAttention3,
    FlashAttention4,
)
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.reference import Problem, attention
from flashgen.runtime.samples import Shape

CPU = torch.device("cpu")
SHAPE = Shape(2, 4, 2, 40, 40)


def problem_of(cell, data):
    return Problem.of(cell.variant, data.q, data.k, data.v, data.arguments)


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def test_unknown_names_are_told():
    with pytest.raises(ArgumentError, match="expected some of flash, cudnn.*got 'fa5'"):
        peers_named(["flash", "fa5"])


def test_peers_for_gpus_are_absent_on_the_cpu():
    absent = {name for name, peer in PEERS.items() if peer.absent(CPU)}
    assert absent == {"cudnn", "efficient", "flex", "fa2", "fa3", "fa4"}


@pytest.mark.parametrize("name", ["flash", "math", "eager"])
@pytest.mark.parametrize("key", ["d16-fp32", "d16-fp32-causal"])
def test_peers_compute_attention(name, key):
    cell = Cell(parse_key(key), SHAPE)
    data = cell.inputs(CPU, 0)
    attend = PEERS[name].attend(cell, data, 0.0)
    with attend.context():
        found = Calls.of(attend, data).output()
    assert relative(found["out"], attention(problem_of(cell, data))[0]) < 1e-5


@pytest.mark.parametrize(
    "key", ["d16-fp32-window4x0", "d16-fp32-softcap5", "d16-fp32-alibi", "d16-fp32-sink"]
)
@pytest.mark.parametrize("name", ["flash", "eager"])
def test_peers_refuse_what_they_lack(name, key):
    cell = Cell(parse_key(key), SHAPE)
    with pytest.raises(Refusal, match="^no "):
        PEERS[name].attend(cell, cell.inputs(CPU, 0), 0.0)


def test_a_backend_that_cannot_refuses_with_torchs_reasons():
    cell = Cell(parse_key("d16-fp32-dropout"), SHAPE, 0.5)
    with pytest.raises(Refusal, match="dropout"):
        PEERS["flash"].attend(cell, cell.inputs(CPU, 0), 0.5)


def test_causal_of_unequal_lengths_is_another_function():
    cell = Cell(parse_key("d16-fp32-causal"), Shape(1, 1, 1, 8, 16))
    with pytest.raises(Refusal, match="aligned"):
        PEERS["math"].attend(cell, cell.inputs(CPU, 0), 0.0)


@pytest.mark.parametrize(
    ("name", "field"), [("unordered", "deterministic"), ("undropped", "dropout")]
)
def test_ours_without_a_field_is_for_variants_that_have_it(name, field):
    cell = Cell(parse_key("d16-fp32"), SHAPE)
    with pytest.raises(Refusal, match=f"no {field}"):
        PEERS[name].attend(cell, cell.inputs(CPU, 0), 0.0)


def test_undropped_is_the_variant_without_dropout():
    cell = Cell(parse_key("d16-fp32-causal-dropout"), SHAPE, dropout_p=0.5)
    data = cell.inputs(CPU, 0)
    out = PEERS["undropped"].attend(cell, data, 0.5).function(data.q, data.k, data.v)
    plain = PEERS["math"].attend(Cell(parse_key("d16-fp32-causal"), SHAPE), data, 0.0)
    with plain.context():
        q, k, v = (t.transpose(1, 2) for t in (data.q, data.k, data.v))
        torch.testing.assert_close(out.transpose(1, 2), plain.function(q, k, v))


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("d64-bf16-causal", {"causal": True}),
        ("d64-bf16-window9x0-softcap20", {"causal": False, "window_size": (9, 0), "softcap": 20.0}),
        ("d64-bf16-windowrt", {"causal": False, "window_size": (16, 0)}),
        ("d64-bf16-windowinfx3-det",
         {"causal": False, "window_size": (-1, 3), "deterministic": True}),
    ],
)  # fmt: skip
def test_options_of_flash_attention(key, options):
    cell = Cell(parse_key(key), SHAPE, span=16)
    arguments = cell.inputs(CPU, 0).arguments
    assert FlashAttention3()._options(cell, arguments, 0.0) == options
    with pytest.raises(Refusal, match="no dropout"):
        FlashAttention3()._options(cell, arguments, 0.1)
    assert FlashAttention2()._options(cell, arguments, 0.1) == options | {"dropout_p": 0.1}
    left, right = options.get("window_size", (None, None))
    beyond = (None if left == -1 else left, None if right == -1 else right)
    of_fa4 = options | ({"window_size": beyond} if "window_size" in options else {})
    assert FlashAttention4()._options(cell, arguments, 0.0) == of_fa4


def flexible(entry):
    v = entry.variant
    return v.layout == "dense" and not v.sink and not v.dropout and v.head_dim >= 16


ENTRIES = [entry for entry in Catalogue.load().entries if flexible(entry)][::6]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.spec.name)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_programs_as_mods_of_flex_attention(entry, monkeypatch):
    """The text that torch would compile, run without compiling it."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    cell = Cell(replace(entry.variant, dtype="fp32"), SHAPE, span=16)
    data = cell.inputs(CPU, 0)
    attend = PEERS["flex"].attend(cell, data, 0.0)
    found = attend.function(*(t.transpose(1, 2) for t in (data.q, data.k, data.v)))
    assert relative(found.transpose(1, 2), attention(problem_of(cell, data))[0]) < 1e-5


def test_flash_attention_3_comes_in_two_packages(monkeypatch):
    """`fa3-fwd` has no backward; the other is taken where both are there."""

    def attend():
        cell = Cell(parse_key("d64-bf16"), SHAPE)
        return FlashAttention3().attend(cell, cell.inputs(CPU, 0), 0.0)

    fwd, both = ModuleType("fa3_fwd_interface"), ModuleType("flash_attn_interface")
    fwd.flash_attn_func = both.flash_attn_func = lambda q, k, v, causal: (q, None)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", fwd)
    assert attend().forward_only
    monkeypatch.setitem(sys.modules, "flash_attn_interface", both)
    assert not attend().forward_only and attend().function(1, 2, 3) == 1
