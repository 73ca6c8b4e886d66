"""Rendered hooks of random programs compile for a device without a warning."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from program_unit import hooks_text
from strategies import random_program

import flashgen.templates
from flashgen.generator.program import program_for
from flashgen.generator.variant import Variant
from flashgen.runtime.toolchain import find_nvcc

HEADER = """
#include "host/capture.h"
#include "host/interval.h"
#define FLASHGEN_HOOK __device__ __forceinline__
using namespace flashgen;
using Acc = float;
"""
KERNEL = """
__global__ void kernel(ProgramArgs args, int* ints, Acc* reals, int q_len, int kv_len TILE_PARAM) {
    const Head head = make_head(args, blockIdx.x, blockIdx.y, 0, q_len, kv_len, gridDim.y);
    const int q_idx = threadIdx.x, kv_idx = threadIdx.y;
    const Row row = make_row(args, head, q_idx);
    const Column column = make_column(args, head, kv_idx);
    ints[0] = mask_mod(args, head, row, column, q_idx, kv_idx);
    ints[1] = visible_keys(head, 0, q_idx).begin + full_keys(head, 0, q_idx).end;
    ints[2] = visible_queries(head, 0, kv_idx).begin + full_queries(head, 0, kv_idx).end;
    SCORE
    TILE
}
"""
SCORE = """
    SiteGradients sites;
    reals[0] = score_mod(args, head, row, column, q_idx, kv_idx, reals[1]);
    reals[2] = score_gradient(args, head, row, column, q_idx, kv_idx, reals[1], reals[3], sites);
"""
TILE = """
    ints[3] = static_cast<int>(
        classify_tile(args, head, bounds, 1, q_idx, q_idx + 9, 2, kv_idx, kv_idx + 9));
"""


def unit_of(index: int, rng: random.Random) -> str:
    softcap = (None, 30.0, "runtime")[index % 3]
    variant = Variant(
        64, 64, "bf16",
        causal=index % 2 == 1, softcap=softcap, alibi=index % 5 == 0,
        body=random_program(rng, depth=2 + index % 3),
    )  # fmt: skip
    program = program_for(variant)
    tiled = program.tile_test is not None
    text = KERNEL.replace("TILE_PARAM", ", TileBounds bounds" if tiled else "")
    text = text.replace("TILE", TILE if tiled else "")
    score = SCORE if program.score is not None else ""
    for site in program.gradients:
        place = f"site_index_{site.name}(args, head, row, column, q_idx, kv_idx)"
        score += f"    reals[{place}] = sites.{site.name};\n"
    text = text.replace("SCORE", score)
    launch = f"kernel<<<1, 1>>>({{}}, nullptr, nullptr, 1, 1{', {}' if tiled else ''})"
    body = f"{hooks_text(variant, program)}\n{text}"
    return f"namespace {{ namespace p{index} {{ {body} }} }}\n" + (
        f"void launch{index}() {{ p{index}::{launch}; }}\n"
    )


@pytest.mark.nvcc
def test_hooks_compile_for_a_device(tmp_path):
    rng = random.Random(5)
    source = tmp_path / "hooks.cu"
    source.write_text(HEADER + "".join(unit_of(index, rng) for index in range(30)))
    include = Path(next(iter(flashgen.templates.__path__)))
    flags = ["-std=c++17", "-arch=sm_80", "-Werror", "all-warnings", "-ptx", "-I", include]
    done = subprocess.run(
        [find_nvcc().path, *flags, source, "-o", tmp_path / "hooks.ptx"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
