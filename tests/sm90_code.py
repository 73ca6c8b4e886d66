"""Machine code of family sm90's forward -> what it lacks of what its plan is about."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flashgen.generator.plan.sm90 import Sm90ForwardPlan
from flashgen.generator.plan.sm90_tiles import PAGE_COLS, Configuration

_FUNCTION = "Function : "
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def instructions_of(binary: Path, cuobjdump: str) -> dict[str, list[str]]:
    """The instructions of each kernel of a library or cubin, in order, by its mangled name."""
    done = subprocess.run([cuobjdump, "-sass", binary], capture_output=True, text=True, check=True)
    kernels = done.stdout.split(_FUNCTION)[1:]
    return {text.split("\n", 1)[0].strip(): _INSTRUCTION.findall(text) for text in kernels}


def step_products(plan: Sm90ForwardPlan, config: Configuration) -> tuple[int, int]:
    """wgmma instructions of S of a tile, and of P V."""
    return -(-plan.variant.head_dim // 16), config.tile_n // 16


def faults(plan: Sm90ForwardPlan, kernels: dict[str, list[str]]) -> Iterator[str]:
    """What the kernels of a plan lack, in words."""
    for config in plan.configs:
        # the name's length comes before it: a Tiles128x64 isn't a TwinTiles128x64
        mangled = f"{len(config.name)}{config.name}E"
        found = [code for name, code in kernels.items() if mangled in name]
        if len(found) != 1:
            yield f"{config.name}: expected one kernel, got {len(found)}"
            continue
        for fault in _faults_of(plan, config, found[0]):
            yield f"{config.name}: {fault}"


def _faults_of(plan: Sm90ForwardPlan, config: Configuration, code: list[str]) -> Iterator[str]:
    counts = Counter(name.split(".")[0] for name in code)
    scores, values = step_products(plan, config)
    # S is begun at a block's first tile, in the loop, behind hidden tiles, and in a chain once more
    # each; P V is in the loop and at its end.
    band = plan.program.mask is not None and plan.program.tile_test is None
    chain = int(config.chain)
    pages, pages_v = (
        -(-columns // PAGE_COLS) for columns in (plan.variant.head_dim, plan.variant.head_dim_v)
    )
    expected = {
        "HGMMA": scores * (2 + chain + band * (1 + chain)) + values * (2 + chain),
        "USETMAXREG": 2,
        "UTMALDG": pages * (1 + config.num_groups) + pages_v,
        "LDL": 0,
        "STL": 0,
    }
    for name, count in expected.items():
        if counts[name] != count:
            yield f"expected {count} {name}, got {counts[name]}"
    order = "".join(n[0] for n in code if n.startswith(("HGMMA", "WARPGROUP.DEPBAR")))
    if "H" * (scores + values) not in order.split("W"):
        yield f"expected {scores + values} products of a step without a wait between, got {order}"
