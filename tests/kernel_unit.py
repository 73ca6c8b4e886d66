"""Many variants' cpu kernels in a few g++ units: hundreds compile in the time of a dozen."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import tvm_ffi

import flashgen.templates
from flashgen.generator.arch import parse_target
from flashgen.generator.plan import plan
from flashgen.generator.render import render
from flashgen.generator.variant import PASSES, Variant
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.loader import CompiledPass
from flashgen.runtime.unit import binding_root

CPU = torch.device("cpu")
TILES = {
    "forward": {"tile_m": 16, "tile_n": 32, "block_vecs": 1},
    "backward": {"tile_m": 16, "tile_n": 32, "dkv_tile_m": 16, "dkv_tile_n": 32, "block_vecs": 1},
}
"""Pins with which a small call has several tiles and panels; dropout blocks fit them."""
_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)


def poisoned(pattern: torch.Tensor) -> torch.Tensor:
    """Memory whose every float is NaN, so that what a kernel leaves unwritten is seen."""
    value = 0xFF if pattern.dtype == torch.uint8 else math.nan
    return torch.full_like(pattern, value, memory_format=torch.contiguous_format)


def kernels(variants: Sequence[Variant], folder: Path, *, units: int) -> list[Kernel]:
    """A kernel of each variant, both passes, from ``units`` translation units in ``folder``."""
    shares = [range(first, len(variants), units) for first in range(units)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        libraries = list(pool.map(lambda share: _library(variants, share, folder), shares))
    found = {}
    for share, library in zip(shares, libraries, strict=True):
        module = tvm_ffi.load_module(str(library))
        found |= {index: _kernel(variants[index], module, index) for index in share}
    return [found[index] for index in range(len(variants))]


def _kernel(variant: Variant, module: tvm_ffi.Module, index: int) -> Kernel:
    kernel = Kernel(variant, CPU, passes=())
    for name in PASSES:
        function, workspace = module[f"{name}_{index}"], module[f"{name}_workspace_{index}"]
        kernel._passes[CPU, name] = CompiledPass(None, function, workspace, module)
    return kernel


def _library(variants: Sequence[Variant], share: range, folder: Path) -> Path:
    """The shared object of the variants in ``share``; its functions end in their indices."""
    includes: dict[str, None] = {}
    bodies = []
    flags: tuple[str, ...] = ()
    for index in share:
        for name in PASSES:
            chosen = plan(variants[index], name, parse_target("cpu"), pins=TILES[name])
            text = render(chosen).text
            includes |= dict.fromkeys(_INCLUDE.findall(text))
            bodies.append(_in_namespace(_INCLUDE.sub("", text), name, index))
            flags = chosen.compile_flags
    source, library = folder / f"unit{share.start}.cpp", folder / f"unit{share.start}.so"
    source.write_text("".join((*includes, *bodies)))
    root = binding_root()
    templates = next(iter(flashgen.templates.__path__))
    command = ["g++", *(flag for flag in flags if flag != "-O3"), "-O1", source, "-o", library]
    command += [f"-I{templates}", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-ltvm_ffi"]
    subprocess.run(command, check=True)
    return library


def _in_namespace(text: str, pass_name: str, index: int) -> str:
    """A rendered file whose names meet those of no other."""
    space = f"{pass_name}_{index}"
    for old, new in (
        (f"__tvm_ffi_{pass_name}(", f"__tvm_ffi_{space}("),
        (f"__tvm_ffi_{pass_name}_workspace(", f"__tvm_ffi_{pass_name}_workspace_{index}("),
    ):
        assert old in text, old
        text = text.replace(old, new)
    return f"namespace {space} {{\n{text}\n}}\n"
