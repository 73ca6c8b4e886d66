"""Variant + example -> the classes that its kernels give to tiles, from the very hooks they inline.

The hooks are rendered into a unit of their own, compiled with the host's compiler and called
through ctypes: a second implementation of the interval arithmetic could disagree with the first.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from ..generator.errors import CompileError
from ..generator.program import TileBound, program_for
from ..generator.render import render_probe
from ..generator.variant import Variant
from . import paths
from .examples import Example, Sizes
from .toolchain import find_host_compiler

_FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off")


def kernel_classes(
    variant: Variant, example: Example, sizes: Sizes, tile_m: int, tile_n: int, head: int = 0
) -> torch.Tensor | None:
    """Classes of one head's tiles, uint8 (q tiles, kv tiles): 0 empty, 1 partial, 2 full.

    None where loop bounds say it all: a band of diagonals, or no mask. The first call for a
    variant compiles for about a second.

    Raises:
        ToolchainError: when there is no host compiler.
        CompileError: when it fails.
    """
    program = program_for(variant)
    if program.tile_test is None:
        return None
    q_tiles, kv_tiles = -(-sizes.seqlen_q // tile_m), -(-sizes.seqlen_k // tile_n)
    out = torch.zeros(q_tiles, kv_tiles, dtype=torch.uint8)
    captures = [example.captures[c.name].contiguous() for c in program.captures]
    shapes = [torch.tensor([*t.shape, 0], dtype=torch.int64) for t in captures]
    numbers = [example.params[p.name] for p in program.params]
    bounds = [_bounds(example, bound, tile_m, tile_n) for bound in program.bounds]
    _library(variant).classify(
        _pointers(captures),
        _pointers(shapes),
        (ctypes.c_int64 * (len(numbers) + 1))(*map(int, numbers)),
        (ctypes.c_double * (len(numbers) + 1))(*map(float, numbers)),
        _pointers(bounds),
        *(head, sizes.seqlen_q, sizes.seqlen_k, sizes.num_heads, tile_m, tile_n),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out


def _pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * (len(tensors) + 1))(*(t.data_ptr() for t in tensors))


def _bounds(example: Example, bound: TileBound, tile_m: int, tile_n: int) -> torch.Tensor:
    """(least, greatest) of a capture over each tile: [other dimensions, tiles, 2]."""
    tile = tile_m if bound.side == "q" else tile_n
    values = example.captures[bound.capture.name].movedim(bound.dim, -1)
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    flat = values.reshape(-1, values.shape[-1])
    parts = [flat[:, first : first + tile] for first in range(0, flat.shape[1], tile)]
    numbers = [part.to(torch.uint8) if part.dtype == torch.bool else part for part in parts]
    pairs = [torch.stack((part.amin(1), part.amax(1)), -1) for part in numbers]
    return torch.stack(pairs, 1).contiguous()


@lru_cache(maxsize=16)
def _library(variant: Variant) -> ctypes.CDLL:
    compiler = find_host_compiler()
    with tempfile.TemporaryDirectory(prefix="flashgen-explain-") as folder:
        source, library = Path(folder, "tiles.cpp"), Path(folder, "tiles.so")
        source.write_text(render_probe(variant), encoding="utf-8")
        command = [compiler.path, *_FLAGS, f"-I{paths.shipped_templates()}", source, "-o", library]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
        if done.returncode:
            raise CompileError(
                f"explain: {compiler.path} failed for the tiles of {variant.key} "
                f"(exit {done.returncode}): {done.stderr[:500]}"
            )
        return ctypes.CDLL(str(library))  # stays mapped when the file goes
