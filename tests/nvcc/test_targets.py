"""Representative kernels of each target spill nothing; the other variants' plans fit it."""

from __future__ import annotations

import pytest

from flashgen.generator.arch import TARGETS
from flashgen.generator.variant import PASSES, parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.cache import Cache

CHOSEN = {
    "sm75": ("d64-fp16-causal", "d128-fp16", "d256-fp16-causal-dropout-det"),
    "sm86": ("d64-fp16-causal", "d128-bf16", "d192v128-bf16-causal"),
    "sm89": ("d128-fp16-causal",),
    "sm120": ("d64-bf16-causal", "d128-bf16-causal"),
}


@pytest.mark.nvcc
def test_no_target_spills(tmp_path):
    """CI asks this of the catalogue for every target; here of wide plans, built as libraries."""
    requests = [
        BuildRequest(parse_key(key), name, TARGETS[target], strict=True)
        for target, keys in CHOSEN.items()
        for key in keys
        for name in PASSES
    ]
    for artifact in build(requests, cache=Cache(tmp_path / "cache")):
        target = TARGETS[artifact.manifest.target]
        assert artifact.manifest.smem_bytes <= target.max_smem_bytes
        for kernel in artifact.resources:
            assert kernel.arch == f"sm_{target.nvcc_arch}"
            assert kernel.registers <= 255 and kernel.spill_store_bytes == 0, kernel


CANDIDATES = [
    ("d256-bf16", "forward", (("tile_m", 128), ("num_warps", 8), ("min_blocks", 1))),
    (
        "d80-bf16-causal",
        "backward",
        (("key_atoms", 2), ("head_splits", 2), ("score_splits", 1)),
    ),
]


@pytest.mark.nvcc
def test_alternatives_of_the_tuner_spill_nothing(tmp_path):
    requests = [
        BuildRequest(parse_key(key), name, TARGETS["sm90"], "sm80", pins, strict=True)
        for key, name, pins in CANDIDATES
    ]
    for artifact in build(requests, cache=Cache(tmp_path / "cache")):
        assert all(kernel.spill_store_bytes == 0 for kernel in artifact.resources)
