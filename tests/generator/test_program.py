"""The program of the presets: the band equals the mask, and the loop bounds are exact."""

from __future__ import annotations

import itertools
import re

import jinja2
import pytest

from flashgen.generator.ir import Name, to_text
from flashgen.generator.program import Program, program_for
from flashgen.generator.render import environment
from flashgen.generator.variant import Variant

VARIANTS = [Variant(64, 64, "bf16"), Variant(64, 64, "bf16", causal=True)]
LENGTHS = [(1, 1), (1, 9), (9, 1), (7, 7), (5, 8), (8, 5), (6, 0), (0, 6), (4, 12)]
TILES = [1, 2, 3, 4, 16]


def sees(program: Program, q: int, k: int, q_len: int, kv_len: int) -> bool:
    names = {"q_idx": q, "kv_idx": k, "q_len": q_len, "kv_len": kv_len}
    return bool(eval(program.mask_text, {}, names))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.key)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_mask_is_the_definition(variant, q_len, kv_len):
    program = program_for(variant)
    for q, k in itertools.product(range(q_len), range(kv_len)):
        expected = not variant.causal or k <= q + kv_len - q_len
        assert sees(program, q, k, q_len, kv_len) == expected


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.key)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_band_is_the_mask(variant, q_len, kv_len):
    program = program_for(variant)
    names = {"q_len": q_len, "kv_len": kv_len}
    for q, k in itertools.product(range(q_len), range(kv_len)):
        inside = True
        if program.band.lower is not None:
            inside &= eval(to_text(program.band.lower), {}, names) <= k - q
        if program.band.upper is not None:
            inside &= k - q <= eval(to_text(program.band.upper), {}, names)
        assert inside == sees(program, q, k, q_len, kv_len)


def hooks(program: Program) -> dict[str, object]:
    """The rendered loop bounds, their C++ turned into Python: what the kernels will run."""
    env = environment()
    parts = ("program_keys.h.j2", "program_queries.h.j2")
    text = "".join(env.get_template(f"partials/{part}").render(program=program) for part in parts)
    functions = {}
    pattern = (
        r"FLASHGEN_HOOK Range (\w+)\(int (\w+), int (\w+), int q_len, int kv_len\) \{\n(.*?)\n\}"
    )
    for name, first, last, body in re.findall(pattern, text, re.DOTALL):
        lines = []
        for line in body.splitlines():
            statement = line.strip().removesuffix(";").removeprefix("const int ")
            returned = re.fullmatch(r"return \{(.*)\}", statement)
            lines.append(f"    return ({returned[1]})" if returned else f"    {statement}")
        source = f"def {name}({first}, {last}, q_len, kv_len):\n" + "\n".join(lines)
        exec(source, functions)
    return functions


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.key)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_loop_bounds_are_exact(variant, q_len, kv_len):
    program = program_for(variant)
    bounds = hooks(program)
    matrix = [[sees(program, q, k, q_len, kv_len) for k in range(kv_len)] for q in range(q_len)]
    for tile in TILES:
        for begin in range(0, q_len, tile):
            rows = matrix[begin : min(begin + tile, q_len)]
            columns = list(zip(*rows, strict=True))
            check(bounds, "keys", columns, begin, begin + len(rows), q_len, kv_len)
        for begin in range(0, kv_len, tile):
            columns = [row[begin : begin + tile] for row in matrix]
            check(bounds, "queries", columns, begin, min(begin + tile, kv_len), q_len, kv_len)


def check(bounds, side, lines, begin, end, q_len, kv_len):
    """The two ranges of a tile against its lines: those with any, and those with all, visible."""
    for kind, holds in (("visible", any), ("full", all)):
        first, last = bounds[f"{kind}_{side}"](begin, end, q_len, kv_len)
        expected = {i for i, line in enumerate(lines) if holds(line)}
        assert set(range(first, last)) == expected, (kind, side, begin, end, q_len, kv_len)


def test_mask_hook_is_the_mask():
    program = program_for(VARIANTS[1])
    text = environment().get_template("partials/program.h.j2").render(program=program)
    assert f"return {program.mask_cpp};" in text
    assert program.mask_cpp == "kv_idx <= q_idx + (kv_len - q_len)"
    assert program_for(VARIANTS[0]).mask_cpp == "true"
    assert program_for(VARIANTS[0]).lower_cpp is None


def test_a_hook_without_its_program_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().get_template("partials/program.h.j2").render()


def test_open_sides_are_none():
    band = program_for(VARIANTS[1]).band
    assert band.lower is None
    assert band.upper is not None
    assert Name("q_len") in (band.upper.left, band.upper.right)
