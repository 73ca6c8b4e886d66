"""Packed sequences: captures of packed tokens are read from the sequence's start, within it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from program_unit import hooks_text

import flashgen.templates
from flashgen.generator.program import program_for
from flashgen.generator.spec import load_specs

SPEC = """
head_dim: 64
dtype: fp32
layout: varlen
captures:
  w: {dims: [total_k], dtype: fp32, grad: true}
  u: {dims: [batch, total_q], dtype: int64}
score: 'score + w[kv_idx]'
mask: 'u[b, q_idx] <= kv_idx'
"""
MAIN = """
int main() {
    float w[10];
    int64_t u[2 * 8];
    for (int i = 0; i < 10; ++i) w[i] = 100.0f + i;
    for (int i = 0; i < 16; ++i) u[i] = i % 8 == 3 ? 1 : 0;
    ProgramArgs args = {};
    args.w = {w, {10}, {1}};
    args.u = {u, {2, 8}, {8, 1}};
    // the second sequence: queries 2 to 5 of 8, keys 4 to 8 of 10
    const Head head = make_head(args, 1, 0, 0, 3, 4, 1, 2, 4);
    const auto score = [&](int q, int kv) {
        const Column column = make_column(args, head, kv);
        return score_mod(args, head, make_row(args, head, q), column, q, kv, 0);
    };
    const auto sees = [&](int q, int kv) {
        return mask_mod(args, head, make_row(args, head, q), make_column(args, head, kv), q, kv);
    };
    const auto place = [&](int kv) {
        return site_index_w_kv(args, head, {}, make_column(args, head, kv), 0, kv);
    };
    if (score(0, 0) != 104 || score(0, 3) != 107 || score(0, 4) != 0 || score(0, -1) != 0) return 1;
    if (place(0) != 4 || place(3) != 7 || place(4) != -1) return 2;
    if (!sees(0, 0) || sees(1, 0) || !sees(1, 1) || !sees(9, 0)) return 3;
    return 0;
}
"""


def test_packed_captures_are_read_within_their_sequence(tmp_path):
    (spec,) = load_specs(SPEC, "test.yaml")
    (variant,) = spec.variants
    program = program_for(variant)
    includes = "".join(f'#include "{header}"\n' for header in program.headers)
    text = (
        f"#include <algorithm>\n{includes}#define FLASHGEN_HOOK static inline\n"
        "using namespace flashgen;\nusing std::max;\nusing std::min;\nusing Acc = float;\n"
        f"{hooks_text(variant, program)}{MAIN}"
    )
    source, binary = tmp_path / "packed.cpp", tmp_path / "packed"
    source.write_text(text)
    include = Path(next(iter(flashgen.templates.__path__)))
    flags = ["-std=c++17", "-Wall", "-Werror", "-Wno-unused-function"]
    subprocess.run(["g++", *flags, "-I", include, source, "-o", binary], check=True)
    assert subprocess.run([binary], check=False).returncode == 0
