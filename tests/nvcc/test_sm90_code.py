"""What ptxas and nvcc make of the sm90 family: no lost speed, and the instructions it is about."""

from __future__ import annotations

from collections import Counter

import pytest
import sm90_code

from flashgen.generator.arch import TARGETS
from flashgen.generator.plan import plan
from flashgen.generator.variant import parse_key
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.cache import Cache
from flashgen.runtime.toolchain import find_cuda_tool

pytestmark = pytest.mark.nvcc
BACKWARD_KEYS = ("d64-bf16", "d128-bf16-causal", "d40-fp16-causal")
WIDE_KEYS = ("d256-bf16-causal", "d192v128-fp16")
ONE_KERNEL = (("chained_products", True), ("own_dq", False))  # of dQ too
KEYS = ("d64-bf16", "d128-bf16-causal", "d256-fp16-dropout")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Built strictly: a spill, or a warning that wgmma is serialised, fails the build."""
    cache = Cache(tmp_path_factory.mktemp("cache"))
    requests = [BuildRequest(parse_key(k), "forward", TARGETS["sm90"], strict=True) for k in KEYS]
    return dict(zip(KEYS, build(requests, cache=cache), strict=True))


@pytest.fixture(scope="module")
def cuobjdump():
    """The tool, or no test."""
    tool = find_cuda_tool("cuobjdump")
    if tool is None:
        pytest.skip("needs cuobjdump (extra: dev)")
    return tool


@pytest.mark.parametrize("key", KEYS)
def test_the_forward_has_the_instructions_that_it_is_about(artifacts, cuobjdump, key):
    """CI asks this of the whole catalogue (.ci/resources.py)."""
    found = plan(parse_key(key), "forward", TARGETS["sm90"])
    kernels = sm90_code.instructions_of(artifacts[key].library, cuobjdump)
    assert not list(sm90_code.faults(found, kernels))


def test_a_fault_of_the_code_is_told(artifacts, cuobjdump):
    found = plan(parse_key("d128-bf16-causal"), "forward", TARGETS["sm90"])
    kernels = sm90_code.instructions_of(artifacts["d128-bf16-causal"].library, cuobjdump)
    ((name, code),) = ((n, c) for n, c in kernels.items() if "Tiles128x128" in n)
    waiting = [i for name in code for i in (name, *["WARPGROUP.DEPBAR"] * (name[:5] == "HGMMA"))]
    for spoilt in (waiting, [*code, "STL.64"], [n for n in code if not n.startswith("USETMAXREG")]):
        assert list(sm90_code.faults(found, {name: spoilt}))
    assert list(sm90_code.faults(found, {}))


@pytest.fixture(scope="module")
def backward_instructions(tmp_path_factory, cuobjdump):
    """The instructions of a key's main backward kernel, in order; built strictly."""
    cache = Cache(tmp_path_factory.mktemp("cache"))
    keys = (*BACKWARD_KEYS, *WIDE_KEYS)
    pins = {key: ONE_KERNEL for key in WIDE_KEYS}
    requests = [
        BuildRequest(
            parse_key(key), "backward", TARGETS["sm90"], "sm90", pins.get(key, ()), strict=True
        )
        for key in keys
    ]
    found = {}
    for key, artifact in zip(keys, build(requests, cache=cache), strict=True):
        kernels = sm90_code.instructions_of(artifact.library, cuobjdump).values()
        (found[key],) = (c for c in kernels if any(name.startswith("HGMMA") for name in c))
    return found


@pytest.mark.parametrize("key", BACKWARD_KEYS)
def test_the_backward_has_its_five_products_once(backward_instructions, key):
    found = plan(parse_key(key), "backward", TARGETS["sm90"])
    depth = -(-found.variant.head_dim // 16)
    products = 2 * depth + 2 * (found.tile_m // 16) + found.tile_n // 16
    counts = Counter(name.split(".")[0] for name in backward_instructions[key])
    assert counts["HGMMA"] == products
    assert counts["USETMAXREG"] == 2
    pages = -(-found.variant.head_dim // 64)
    assert counts["UTMALDG"] == 4 * pages
    assert counts["STSM"] == found.tile_m // 16
    assert counts["LDL"] == counts["STL"] == 0


@pytest.mark.parametrize("key", BACKWARD_KEYS)
def test_dq_is_added_four_floats_at_once_between_dks_products(backward_instructions, key):
    found = plan(parse_key(key), "backward", TARGETS["sm90"])
    names = backward_instructions[key]
    adds = [i for i, name in enumerate(names) if name.startswith("REDG") and "F32" in name]
    assert len(adds) == found.dq_columns // 8
    assert all("F32x4" in names[i] for i in adds)
    last_product = max(i for i, name in enumerate(names) if name.startswith("HGMMA"))
    assert adds[0] < last_product


@pytest.mark.parametrize("key", WIDE_KEYS)
def test_wide_heads_add_dq_while_dks_products_run(backward_instructions, key):
    target, pins = TARGETS["sm90"], dict(ONE_KERNEL)
    found = plan(parse_key(key), "backward", target, family="sm90", pins=pins)
    names = backward_instructions[key]
    counts = Counter(name.split(".")[0] for name in names)
    depths = -(-found.variant.head_dim // 16) - (-found.variant.head_dim_v // 16)
    assert counts["HGMMA"] == depths + 2 * (found.tile_m // 16) + found.tile_n // 16
    assert counts["STSM"] == counts["LDSM"] == 2 * (found.score_m // 16)
    assert counts["LDL"] == counts["STL"] == 0
    adds = [i for i, name in enumerate(names) if name.startswith("REDG")]
    assert len(adds) == found.share_qk.width // 8
    assert all("F32x4" in names[i] for i in adds)
    last_product = max(i for i, name in enumerate(names) if name.startswith("HGMMA"))
    waits = [i for i, name in enumerate(names) if name.startswith("WARPGROUP.DEPBAR")]
    # One wait, for dQ's products and not for dK's behind them.
    assert len([i for i in waits if last_product < i < adds[0]]) == 1
    assert len([i for i in waits if i > adds[0]]) == 1


GOING = (("persistent_blocks", False), ("early_conversion", False))


def test_what_the_tuner_tries_loses_no_speed_to_the_compiler(tmp_path):
    """Built strictly, since a spill or serialised products would only show as a slow candidate."""
    cache = Cache(tmp_path)
    requests = [
        BuildRequest(parse_key(key), "backward", TARGETS["sm90"], strict=True, pins=pins)
        for key, pins in (
            ("d64-bf16", (("early_exponentials", False), ("persistent_blocks", True))),
            ("d128-bf16-causal", (("tile_m", 32), ("head_sections", 32), *GOING)),
            ("d128-bf16", (("short_addresses", True), *GOING)),
            ("d128-bf16-causal-dropout", (("persistent_blocks", True),)),
            ("d64-bf16-causal-det", (("persistent_blocks", True),)),
        )
    ]
    assert all(artifact.library.exists() for artifact in build(requests, cache=cache))
