"""The program of the presets: the band equals the mask, and the loop bounds are exact."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import jinja2
import pytest

from flashgen.generator.ir import to_text
from flashgen.generator.program import Program, program_for
from flashgen.generator.render import environment
from flashgen.generator.variant import Variant, Window

VARIANTS = [
    Variant(64, 64, "bf16"),
    Variant(64, 64, "bf16", causal=True),
    Variant(64, 64, "bf16", causal="top_left"),
    Variant(64, 64, "bf16", window=Window(2, 1)),
    Variant(64, 64, "bf16", window=Window(None, 3)),
    Variant(64, 64, "bf16", causal=True, window=Window(2, 5)),
]
LENGTHS = [(1, 1), (1, 9), (9, 1), (7, 7), (5, 8), (8, 5), (6, 0), (0, 6), (4, 12)]
TILES = [1, 2, 3, 4, 16]


def defined(variant: Variant, q: int, k: int, q_len: int, kv_len: int) -> bool:
    """Whether a query sees a key, written down a second time."""
    diagonal = q + kv_len - q_len
    sees = True
    if variant.causal == "top_left":
        sees = k <= q
    elif variant.causal:
        sees = k <= diagonal
    if variant.window is not None:
        left, right = variant.window.left, variant.window.right
        sees = sees and (left is None or k >= diagonal - left)
        sees = sees and (right is None or k <= diagonal + right)
    return sees


def sees(program: Program, q: int, k: int, q_len: int, kv_len: int) -> bool:
    names = {"q_idx": q, "kv_idx": k, "q_len": q_len, "kv_len": kv_len}
    return bool(eval(program.mask_text, {}, names))


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_the_mask_is_the_definition(variant, q_len, kv_len):
    program = program_for(variant)
    for q, k in itertools.product(range(q_len), range(kv_len)):
        assert sees(program, q, k, q_len, kv_len) == defined(variant, q, k, q_len, kv_len)


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
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
    assert program.tile_test is None


def hooks(program: Program) -> dict[str, object]:
    """The rendered loop bounds, their C++ turned into Python: what the kernels will run."""
    env = environment()
    parts = ("program_keys.h.j2", "program_queries.h.j2")
    text = "".join(
        env.get_template(f"partials/{part}").render(program=program, hooks=program.hooks)
        for part in parts
    )
    functions = {}
    pattern = r"FLASHGEN_HOOK Range (\w+)\(const Head& head, int (\w+), int (\w+)\) \{\n(.*?)\n\}"
    for name, first, last, body in re.findall(pattern, text, re.DOTALL):
        lines = []
        for line in body.splitlines():
            statement = line.strip().removesuffix(";").removeprefix("const int ")
            returned = re.fullmatch(r"return \{(.*)\}", statement)
            lines.append(f"    return ({returned[1]})" if returned else f"    {statement}")
        source = f"def {name}(head, {first}, {last}):\n" + "\n".join(lines)
        exec(source, functions)
    return functions


@pytest.mark.parametrize("variant", VARIANTS, ids=repr)
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
def test_loop_bounds_are_exact(variant, q_len, kv_len):
    program = program_for(variant)
    bounds = hooks(program)
    head = SimpleNamespace(q_len=q_len, kv_len=kv_len)
    matrix = [[sees(program, q, k, q_len, kv_len) for k in range(kv_len)] for q in range(q_len)]
    for tile in TILES:
        for begin in range(0, q_len, tile):
            rows = matrix[begin : min(begin + tile, q_len)]
            columns = list(zip(*rows, strict=True))
            check(bounds, "keys", columns, begin, begin + len(rows), head)
        for begin in range(0, kv_len, tile):
            columns = [row[begin : begin + tile] for row in matrix]
            check(bounds, "queries", columns, begin, min(begin + tile, kv_len), head)


def check(bounds, side, lines, begin, end, head):
    """The two ranges of a tile against its lines: those with any, and those with all, visible."""
    for kind, holds in (("visible", any), ("full", all)):
        first, last = bounds[f"{kind}_{side}"](head, begin, end)
        expected = {i for i, line in enumerate(lines) if holds(line)}
        found = set(range(first, last))
        # a range may reach over lines that the other tiles' ranges exclude, never miss one
        assert found == expected if expected else not found or kind == "visible", (kind, side)


def test_mask_hook_is_the_mask():
    program = program_for(VARIANTS[1])
    text = (
        environment()
        .get_template("partials/program.h.j2")
        .render(program=program, hooks=program.hooks, variant=VARIANTS[1])
    )
    assert "return kv_idx <= q_idx + (head.kv_len - head.q_len);" in text
    assert program.mask_text == "kv_idx <= q_idx + (kv_len - q_len)"
    assert program_for(VARIANTS[0]).hooks.mask is None
    assert program.headers == ()


def test_a_hook_without_its_program_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().get_template("partials/program.h.j2").render()


def test_open_sides_are_none():
    band = program_for(VARIANTS[1]).band
    assert band.lower is None
    assert band.upper is not None
    assert to_text(band.upper) == "kv_len - q_len"
