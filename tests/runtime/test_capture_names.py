"""Captures named as the rendered code names its own things: the backward still compiles."""

from __future__ import annotations

import subprocess

import pytest

import flashgen.templates
from flashgen.generator.arch import parse_target
from flashgen.generator.plan import plan
from flashgen.generator.render import render
from flashgen.generator.spec import load_specs
from flashgen.runtime.toolchain import find_nvcc
from flashgen.runtime.unit import binding_root

NAMES = (
    "Acc Call CaptureGradients FixedSums FixedSum Function Head KeyTerms LargestTerms Params Row "
    "ProgramGradients SiteGradients SiteSums StepTerms TileWalk kTileM kPlaces kWidth kNumThreads "
    "FLASHGEN_HOOK TVM_FFI_DLL_EXPORT start note set_scale for_each function threads elements "
    "largest terms sums gradients ok out include capture_size steps place args head row column "
    "load task lane warp smem scores a i p"
).split()


@pytest.mark.parametrize("target", ["cpu", pytest.param("sm80", marks=pytest.mark.nvcc)])
def test_learned_captures_of_these_names_compile(tmp_path, target):
    names = [name for name in NAMES if name != "out"]  # an argument of the call
    captures = "".join(f"  {n}: {{dims: [num_heads], dtype: fp32, grad: true}}\n" for n in names)
    score = " + ".join(f"{name}[h]" for name in names)
    text = f"head_dim: 64\ndtype: fp16\ncaptures:\n{captures}score: 'score + {score}'\n"
    variant = load_specs(text, "x.yaml")[0].variants[0]
    source = tmp_path / ("x.cpp" if target == "cpu" else "x.cu")
    source.write_text(render(plan(variant, "backward", parse_target(target))).text)
    command = ["g++", "-march=x86-64-v3", "-fopenmp", "-fsyntax-only"]
    if target != "cpu":
        command = [find_nvcc().path, "-arch=sm_80", "-cuda", "-o", tmp_path / "x.ii"]
    include = [f"-I{next(iter(flashgen.templates.__path__))}", f"-I{binding_root() / 'include'}"]
    done = subprocess.run(
        [*command, "-std=c++17", *include, source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, "\n".join(
        line for line in done.stderr.splitlines() if "error" in line
    )[:2000]
