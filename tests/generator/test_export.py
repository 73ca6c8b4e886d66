"""Exported files as text: self-contained, repeatable, complete, and C."""

from __future__ import annotations

import re
import shutil
import subprocess

import export_program
import pytest

from flashgen.generator import export as export_module
from flashgen.generator.arch import parse_target
from flashgen.generator.errors import PlanError
from flashgen.generator.export import export
from flashgen.generator.plan import plan
from flashgen.generator.variant import parse_key

KEYS = (
    "d64-fp16",
    "d128v64-bf16-causal-det",
    "d64-bf16-varlen-windowrt-softcaprt-alibi-sink-blockmask128x128-dropout",
)


def name_of(variant):
    return str(getattr(variant, "key", variant))


def plans(variant, target, passes=("backward", "forward")):
    variant = parse_key(variant) if isinstance(variant, str) else variant
    return [plan(variant, name, parse_target(target)) for name in passes]


@pytest.mark.parametrize("target", ["cpu", "sm80", "sm90"])
@pytest.mark.parametrize("variant", [*KEYS, export_program.documents("fp16")], ids=name_of)
def test_files_need_nothing_of_flashgen(variant, target):
    files = export(plans(variant, target))
    assert export(plans(variant, target)) == files
    includes = re.findall(r'^#include "(.*)"', files.source, re.MULTILINE)
    assert includes == [files.header_name]
    assert re.findall(r"^#include <(.*)>", files.header, re.MULTILINE) == [
        "stdbool.h",
        "stdint.h",
    ]
    for word in ("tvm", "dlpack", "DLPack", "torch/", "Python", "Jinja", "#pragma once"):
        assert word not in files.source + files.header, word
    functions = re.findall(r"^(?:flashgen_status|int64_t|const char\*) (\w+)\(", files.header, re.M)
    stem = files.header_name[:-2]
    ends = ("forward", "forward_workspace", "backward", "backward_workspace", "message")
    assert functions == [f"{stem}_{end}" for end in ends]
    for name in functions:
        assert re.search(rf'^extern "C" .*\b{name}\(', files.source, re.MULTILINE), name


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("variant", [KEYS[-1], export_program.documents("bf16")], ids=name_of)
def test_headers_are_c(tmp_path, variant):
    headers = [export(plans(variant, target)) for target in ("cpu", "sm80")]
    for files in headers:
        (tmp_path / files.header_name).write_text(files.header)
    text = "".join(f'#include "{files.header_name}"\n' for files in (*headers, headers[0]))
    (tmp_path / "both.c").write_text(text)
    check = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(["gcc", "-std=c99", *check, "both.c"], cwd=tmp_path, check=True)
    subprocess.run(["g++", *check, "-x", "c++", "both.c"], cwd=tmp_path, check=True)


def test_what_a_spec_names_is_in_the_header_by_name():
    header = export(plans(export_program.documents("fp16"), "sm80")).header
    for line in (
        "const int32_t* data; /* [batch, seqlen_k], int32 */",
        "    } doc;",
        "    double cap;",
        "    float* slope; /* [num_heads] */",
        "  mask  = doc[b, q_idx] == doc[b, kv_idx]",
        "struct CUstream_st* stream",
    ):
        assert line in header, line
    header = export(plans(KEYS[-1], "cpu")).header
    for line in (
        "int64_t window_left; /* keys beside the diagonal, at least 0; 1073741824 for no bound */",
        "const int32_t* cu_seqlens_q;",
        "probability of dropping, times 256",
        "float* dsink;",
        "blocks of 128 queries and 128 keys",
    ):
        assert line in header, line
    assert "stream" not in header


def test_one_pass_alone():
    files = export(plans("d64-fp16", "sm80", ("forward",)), "attn")
    assert (files.source_name, files.header_name) == ("attn.cu", "attn.h")
    assert "attn_forward(" in files.header and "backward" not in files.header
    assert "backward_pass" not in files.source


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "é", "a;b", "_a"])
def test_names_that_are_none_in_c(name):
    with pytest.raises(PlanError, match="export: name: expected a name of C"):
        export(plans("d64-fp16", "cpu"), name)


def test_a_family_without_c_entry_points(monkeypatch):
    monkeypatch.setattr(export_module, "render_with", lambda *_: "int __tvm_ffi_forward();")
    with pytest.raises(PlanError, match="d64-fp16 sm80: expected a family whose templates"):
        export(plans("d64-fp16", "sm80"))


def test_every_header_comes_after_those_it_needs():
    source = export(plans(KEYS[-1], "sm80")).source
    order = re.findall(r"^// ======== (.*) ========$", source, re.MULTILINE)
    assert order[-2:] == ["forward", "backward"]
    for path in order[:-2]:
        needed = re.findall(r'^#include "(.*)"', export_module.header_text(path), re.MULTILINE)
        for other in needed:
            other = export_module._STAND_INS.get(other, other)
            assert order.index(other) < order.index(path), (path, other)
