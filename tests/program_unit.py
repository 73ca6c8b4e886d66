"""Many programs' rendered hooks in one g++ unit, called through ctypes: what the kernels inline."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
from strategies import CAPTURES

import flashgen.templates
from flashgen.generator.program import Program, program_for
from flashgen.generator.render import environment
from flashgen.generator.variant import Variant

PARTS = ("program", "program_keys", "program_queries", "program_gradient", "program_tiles")
MAX_SITES = 12
DTYPES = {
    "bool": torch.bool,
    "int32": torch.int32,
    "int64": torch.int64,
    "fp32": torch.float32,
}

_HEADER = """
#include <algorithm>
#include <cmath>
#include <vector>
#include "host/capture.h"
#include "host/interval.h"
using namespace flashgen;
using std::max;
using std::min;
using Acc = double;
#define FLASHGEN_HOOK static inline
struct Sizes { int32_t batch, num_heads, num_heads_kv, q_len, kv_len; };
struct Call { Sizes sizes; const void* data[16]; int64_t W; double cap; };
struct Out { uint8_t* mask; double* score; double* dscore; double* sites; int64_t* places; };
template <typename T, int kRank>
static Capture<const T, kRank> bind(const void* data,
                                    const int64_t (&sizes)[kRank > 0 ? kRank : 1]) {
    Capture<const T, kRank> c = {static_cast<const T*>(data), {}, {}};
    int64_t stride = 1;
    for (int i = kRank - 1; i >= 0; --i) {
        c.sizes[i] = sizes[i];
        c.strides[i] = stride;
        stride *= sizes[i];
    }
    return c;
}
"""

_ELEMENTS = """
static void elements(const Call& call, const Out& out) {
    const Sizes& n = call.sizes;
    const ProgramArgs args = bind_all(call);
    int64_t at = 0;
    for (int b = 0; b < n.batch; ++b) for (int h = 0; h < n.num_heads; ++h) {
        const Head head = make_head(args, b, h, h / (n.num_heads / n.num_heads_kv), n.q_len,
                                    n.kv_len, n.num_heads);
        for (int q_idx = 0; q_idx < n.q_len; ++q_idx)
        for (int kv_idx = 0; kv_idx < n.kv_len; ++kv_idx, ++at) {
            const Row row = make_row(args, head, q_idx);
            const Column column = make_column(args, head, kv_idx);
            out.mask[at] = mask_mod(args, head, row, column, q_idx, kv_idx);
            SCORE
        }
    }
}
"""

_TILES = """
static void tiles(const Call& call, int rows, int columns, uint8_t* out) {
    const Sizes& n = call.sizes;
    const ProgramArgs args = bind_all(call);
    for (int b = 0; b < n.batch; ++b) for (int h = 0; h < n.num_heads; ++h) {
        const Head head = make_head(args, b, h, h / (n.num_heads / n.num_heads_kv), n.q_len,
                                    n.kv_len, n.num_heads);
        for (int q = 0; q < n.q_len; q += rows) for (int k = 0; k < n.kv_len; k += columns, ++out) {
            const int q_last = min(q + rows, n.q_len) - 1, kv_last = min(k + columns, n.kv_len) - 1;
            TileBounds bounds = {};
            bounds.num_q_tiles = bounds.num_kv_tiles = 1;
            BOUNDS
            const TileClass found = classify_tile(args, head, bounds, 0, q, q_last, 0, k, kv_last);
            *out = static_cast<uint8_t>(found);
        }
    }
}
"""

_RANGES = """
static void ranges(const Call& call, int tile, int32_t* out) {
    const Sizes& n = call.sizes;
    const ProgramArgs args = bind_all(call);
    const auto put = [&](Range range) {
        *out++ = range.begin;
        *out++ = range.end;
    };
    for (int b = 0; b < n.batch; ++b) for (int h = 0; h < n.num_heads; ++h) {
        const Head head = make_head(args, b, h, h / (n.num_heads / n.num_heads_kv), n.q_len,
                                    n.kv_len, n.num_heads);
        for (int q = 0; q < n.q_len; q += tile) {
            put(visible_keys(head, q, min(q + tile, n.q_len)));
            put(full_keys(head, q, min(q + tile, n.q_len)));
        }
        for (int kv = 0; kv < n.kv_len; kv += tile) {
            put(visible_queries(head, kv, min(kv + tile, n.kv_len)));
            put(full_queries(head, kv, min(kv + tile, n.kv_len)));
        }
    }
}
"""


class Sizes(ctypes.Structure):
    """Sizes of a call."""

    _fields_ = [(n, ctypes.c_int32) for n in ("batch", "num_heads", "num_heads_kv", "q", "kv")]


class CallArgs(ctypes.Structure):
    """What a program is called with."""

    _fields_ = [
        ("sizes", Sizes),
        ("data", ctypes.c_void_p * 16),
        ("W", ctypes.c_int64),
        ("cap", ctypes.c_double),
    ]


class Out(ctypes.Structure):
    """Where the elements go."""

    _fields_ = [(n, ctypes.c_void_p) for n in ("mask", "score", "dscore", "sites", "places")]


@dataclass(frozen=True)
class Inputs:
    """One call: sizes, captures and params."""

    sizes: tuple[int, int, int, int, int]
    captures: dict[str, torch.Tensor]
    params: dict[str, int | float]

    def pack(self) -> CallArgs:
        pointers = [self.captures[c.name].data_ptr() for c in CAPTURES]
        data = (ctypes.c_void_p * 16)(*pointers)
        return CallArgs(Sizes(*self.sizes), data, self.params["W"], self.params["cap"])


def inputs(seed: int, sizes: tuple[int, int, int, int, int]) -> Inputs:
    """Random captures and params for (batch, heads, kv heads, q_len, kv_len)."""
    g = torch.Generator().manual_seed(seed)
    batch, heads, _, q_len, kv_len = sizes
    axes = {"batch": batch, "num_heads": heads, "seqlen_q": q_len, "seqlen_k": kv_len}
    captures = {}
    for capture in CAPTURES:
        shape = [axes.get(d, d) for d in capture.dims]
        dtype = DTYPES[capture.dtype]
        if dtype.is_floating_point:
            value = torch.randn(shape, generator=g, dtype=dtype)
        else:
            high = {"doc": 4, "prefix": kv_len + 1}.get(capture.name, 2)
            value = torch.randint(0, high, shape, generator=g).to(dtype)
        if capture.name == "doc" and seed % 2:
            value = value.sort().values
        captures[capture.name] = value.contiguous()
    return Inputs(sizes, captures, {"W": (seed * 7) % 23 - 4, "cap": 0.5 + seed % 5})


class Unit:
    """The compiled programs."""

    def __init__(self, variants: list[Variant], folder: Path, flags: tuple[str, ...] = ()) -> None:
        self.programs = [program_for(variant) for variant in variants]
        text = [_HEADER]
        for index, (variant, program) in enumerate(zip(variants, self.programs, strict=True)):
            text.append(f"namespace p{index} {{\n{hooks_text(variant, program)}")
            text.append(_glue(program) + "\n}\n")
        text.append(_switch("elements", "const Out* out", "*out", self.programs))
        tiles = "int rows, int columns, uint8_t* out", "rows, columns, out"
        text.append(_switch("ranges", "int tile, int32_t* out", "tile, out", self.programs))
        text.append(_switch("tiles", *tiles, self.programs, tiled=True))
        source, library = folder / "programs.cpp", folder / "programs.so"
        source.write_text("".join(text))
        include = Path(next(iter(flashgen.templates.__path__)))
        command = [
            "g++",
            "-std=c++17",
            "-O1",
            "-Wall",
            "-Werror",
            "-fPIC",
            "-shared",
            "-I",
            include,
        ]
        subprocess.run(
            [*command, "-Wno-unused-function", "-ffp-contract=off", *flags, source, "-o", library],
            check=True,
        )
        self.library = ctypes.CDLL(str(library))

    def elements(self, index: int, given: Inputs) -> dict[str, torch.Tensor]:
        """Every element of a program: mask, score, dscore for a seed of 1, sites and places."""
        batch, heads, _, q_len, kv_len = given.sizes
        shape = (batch, heads, q_len, kv_len)
        score = _scores(shape)
        found = {
            "mask": torch.zeros(shape, dtype=torch.uint8),
            "score": score.clone(),
            "dscore": torch.zeros(shape, dtype=torch.float64),
            "sites": torch.zeros((*shape, MAX_SITES), dtype=torch.float64),
            "places": torch.full((*shape, MAX_SITES), -1, dtype=torch.int64),
        }
        out = Out(*(tensor.data_ptr() for tensor in found.values()))
        self.library.elements(index, ctypes.byref(given.pack()), ctypes.byref(out))
        return found

    def ranges(self, index: int, given: Inputs, tile: int) -> torch.Tensor:
        """Loop bounds [batch, heads, tiles of queries then of keys, (visible, full), 2]."""
        batch, heads, _, q_len, kv_len = given.sizes
        tiles = -(-q_len // tile) + -(-kv_len // tile)
        out = torch.zeros((batch, heads, tiles, 2, 2), dtype=torch.int32)
        call = ctypes.byref(given.pack())
        self.library.ranges(index, call, tile, ctypes.c_void_p(out.data_ptr()))
        return out

    def tiles(self, index: int, given: Inputs, rows: int, columns: int) -> torch.Tensor:
        """The class of every tile: 0 empty, 1 partial, 2 full; [batch, heads, tiles, tiles]."""
        batch, heads, _, q_len, kv_len = given.sizes
        shape = (batch, heads, -(-q_len // rows), -(-kv_len // columns))
        out = torch.zeros(shape, dtype=torch.uint8)
        call = ctypes.byref(given.pack())
        self.library.tiles(index, call, rows, columns, ctypes.c_void_p(out.data_ptr()))
        return out


def _scores(shape: tuple[int, ...]) -> torch.Tensor:
    """The incoming score of each element."""
    count = 1
    for size in shape:
        count *= size
    return torch.linspace(-3.1, 2.9, count, dtype=torch.float64).reshape(shape)


scores = _scores


def hooks_text(variant: Variant, program: Program) -> str:
    """The rendered hooks."""
    env = environment()
    return "".join(
        env.get_template(f"partials/{part}.h.j2").render(
            program=program, hooks=program.hooks, variant=variant
        )
        for part in PARTS
    )


def _glue(program: Program) -> str:
    order = {c.name: i for i, c in enumerate(CAPTURES)}
    axes = {
        "batch": "call.sizes.batch",
        "num_heads": "call.sizes.num_heads",
        "seqlen_q": "call.sizes.q_len",
        "seqlen_k": "call.sizes.kv_len",
    }
    lines = ["static ProgramArgs bind_all(const Call& call) {", "ProgramArgs args = {};"]
    for c in program.captures:
        sizes = ", ".join(str(axes.get(str(d), d)) for d in c.dims) or "1"
        bound = f"bind<{c.cpp_type}, {c.rank}>(call.data[{order[c.name]}], {{{sizes}}})"
        lines.append(f"args.{c.cpp_name} = {bound};")
    lines += [f"args.{p.cpp_name} = call.{p.name};" for p in program.params]
    lines += ["(void)call;", "return args;", "}"]
    score = "(void)out.score;"
    if program.score is not None:
        score = """SiteGradients sites = {};
            const Acc incoming = out.score[at];
            out.dscore[at] = score_gradient(args, head, row, column, q_idx, kv_idx, incoming, 1.0,
                                            sites);
            out.score[at] = score_mod(args, head, row, column, q_idx, kv_idx, incoming);
        """
        for i, site in enumerate(program.gradients):
            index = f"at * {MAX_SITES} + {i}"
            place = f"site_index_{site.name}(args, head, row, column, q_idx, kv_idx)"
            score += f"out.sites[{index}] = sites.{site.name}; out.places[{index}] = {place};\n"
    text = "\n".join(lines) + _ELEMENTS.replace("SCORE", score)
    text += _RANGES
    if program.tile_test is not None:
        text += _TILES.replace("BOUNDS", "\n".join(map(_bound, program.bounds)))
    return text


def _bound(bound) -> str:
    outer, load = "1", "i"
    if bound.capture.rank == 2:
        outer, load = "n.batch", "o, i"
    first, last = ("q", "q_last") if bound.side == "q" else ("k", "kv_last")
    name, capture = bound.name, bound.capture.cpp_name
    return f"""std::vector<Bound<{bound.cpp_type}>> {name}({outer}, {{0, 0}});
        Bound<{bound.cpp_type}>* {name}_at = {name}.data();
        for (int o = 0; o < {outer}; ++o) {{
            for (int i = {first}; i <= {last}; ++i) {{
                const auto value = args.{capture}.load({load});
                if (i == {first}) {name}_at[o] = {{value, value}};
                {name}_at[o].include(value);
            }}
        }}
        bounds.{name} = {name}_at;"""


def _switch(name: str, params: str, args: str, programs: list[Program], tiled: bool = False) -> str:
    cases = "".join(
        f"case {i}: p{i}::{name}(*call, {args}); break;\n"
        for i, program in enumerate(programs)
        if not tiled or program.tile_test is not None
    )
    return (
        f'extern "C" void {name}(int program, const Call* call, {params}) '
        f"{{ switch (program) {{ {cases} default: break; }} }}\n"
    )
