"""Reading `ptxas -v`: registers, spills, memory and warnings, by kernel."""

from __future__ import annotations

import pytest

from flashgen.runtime.ptxas import (
    KernelResources,
    kernel_name,
    lost_speed_warnings,
    parse_resources,
    parse_warnings,
)

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4fwd_PKfi' for 'sm_80'
ptxas info    : Function properties for _Z4fwd_PKfi
    24 bytes stack frame, 16 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compile time = 18.668 ms
ptxas info    : Compiling entry function '_ZN8flashgen5deltaEPf' for 'sm_80'
ptxas info    : Function properties for _ZN8flashgen6helperEv
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Function properties for _ZN8flashgen5deltaEPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 364 bytes cmem[0]
"""
C7508 = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum "
    "register requirement."
)


def test_each_kernel_has_its_own_numbers():
    assert parse_resources(LOG) == (
        KernelResources("fwd_", "sm_80", 255, 16, 12, 24, 2048),
        KernelResources("flashgen::delta", "sm_80", 32),
    )


def test_a_log_without_ptxas_has_no_kernels():
    assert parse_resources("fwd.cu(3): error: expected a ;\n") == ()


def test_spills_and_dropped_features_are_lost_speed():
    lost = lost_speed_warnings(parse_resources(LOG), parse_warnings(f"{LOG}{C7508}\n"))
    assert lost == ("fwd_ for sm_80: 16 bytes spill stores, 12 bytes spill loads", C7508)


@pytest.mark.parametrize("code", ["C7510", "C7511", "C7512", "C7513", "C7514", "C7515"])
def test_serialised_wgmma_is_lost_speed(code):
    line = f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async ..."
    assert lost_speed_warnings((), parse_warnings(line)) == (line,)


def test_other_warnings_are_kept_but_cost_no_speed():
    log = (
        "fwd.cu(9): warning #177-D: variable kTileM was declared but never referenced\n"
        "ptxas info    : (C7509) something else\n"
    )
    warnings = parse_warnings(log + log)
    assert len(warnings) == 1
    assert warnings[0].startswith("fwd.cu(9)")
    assert lost_speed_warnings((), warnings) == ()


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z4kernPfi", "kern"),
        ("_ZL4kernPfi", "kern"),
        ("_ZN8flashgen3fwdILi64EEEvPf", "flashgen::fwd"),
        ("_ZN8flashgen12_GLOBAL__N_13fwdEPf", "flashgen::fwd"),
        ("fwd_d64", "fwd_d64"),
        ("_Zodd", "_Zodd"),
    ],
)
def test_kernel_name(symbol, name):
    assert kernel_name(symbol) == name
