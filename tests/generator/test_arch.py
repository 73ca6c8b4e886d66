"""Targets: every accepted spelling, every refusal with its reason, the family that serves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator.arch import (
    FAMILIES,
    TARGETS,
    buildable_targets,
    family_for,
    parse_target,
    parse_targets,
    target_for_capability,
    target_for_family,
)
from flashgen.generator.errors import TargetError


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("sm80", "sm80"),
        ("sm_80", "sm80"),
        ("80", "sm80"),
        ("8.0", "sm80"),
        ("SM80", "sm80"),
        (" sm80 ", "sm80"),
        ("compute_80", "sm80"),
        ("9.0a", "sm90"),
        ("sm90a", "sm90"),
        ("sm_90a", "sm90"),
        ("90", "sm90"),
        ("10.0", "sm100"),
        ("100", "sm100"),
        ("sm100f", "sm100"),
        ("12.0", "sm120"),
        ("7.5", "sm75"),
        ("cpu", "cpu"),
        ("CPU", "cpu"),
    ],
)
def test_spellings(spelling, name):
    assert parse_target(spelling).name == name


@given(st.sampled_from([t for t in TARGETS.values() if not t.is_cpu]))
def test_every_target_in_every_spelling(target):
    major, minor = target.capability
    for digits in (f"{major}{minor}", f"{major}.{minor}"):
        for prefix in ("", "sm", "sm_", "SM_", "compute_"):
            assert parse_target(prefix + digits) is target


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("sm81", "Did you mean 'sm80'"),
        ("sm99", "Did you mean 'sm90'"),
        ("12.1", "Did you mean 'sm120'"),
        ("foo", "expected one of cpu, sm75, sm80"),
        ("sm70", "CUDA 13 starts at sm75"),
        ("7.0", "CUDA 13 starts at sm75"),
        ("sm_61", "CUDA 13 starts at sm75"),
        ("sm80a", "expected one of"),
        ("sm90f", "expected one of"),
        ("sm" + "9" * 5000, "expected one of"),
        ("8.0.0", "expected one of"),
        ("８.０", "expected one of"),
        ("", "expected one of"),
        ("sm", "expected one of"),
        ("native", "--arch"),
        ("natve", "Did you mean 'native'"),
    ],
)
def test_refusals(spelling, says):
    with pytest.raises(TargetError) as caught:
        parse_target(spelling)
    assert says in str(caught.value)
    for name in TARGETS:
        assert name in str(caught.value)


def test_native_is_what_the_caller_says():
    assert parse_target("native", native=TARGETS["sm86"]).name == "sm86"
    names = [t.name for t in parse_targets("sm80;native", native=TARGETS["cpu"])]
    assert names == ["sm80", "cpu"]


@pytest.mark.parametrize("text", ["8.0;9.0a", "8.0, 9.0a", "sm80 sm90", "80;;90;8.0"])
def test_lists(text):
    assert [t.name for t in parse_targets(text)] == ["sm80", "sm90"]


@pytest.mark.parametrize("text", ["", " ; ", "8.0;foo"])
def test_bad_lists(text):
    with pytest.raises(TargetError):
        parse_targets(text)


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((7, 5), "sm75"),
        ((8, 0), "sm80"),
        ((8, 6), "sm86"),
        ((8, 8), "sm87"),
        ((8, 9), "sm89"),
        ((9, 0), "sm90"),
        ((10, 3), "sm100"),
        ((12, 1), "sm120"),
    ],
)
def test_devices_get_the_highest_target_of_their_major(capability, name):
    assert target_for_capability(*capability).name == name


@pytest.mark.parametrize("capability", [(7, 0), (11, 0), (0, 0), (13, 0)])
def test_devices_without_a_target(capability):
    with pytest.raises(TargetError, match="no target for compute capability"):
        target_for_capability(*capability)


def test_a_fallback_is_never_silent():
    family, reason = family_for(TARGETS["sm120"])
    assert family in FAMILIES
    assert reason
    for target in TARGETS.values():
        if target.name not in buildable_targets():
            with pytest.raises(TargetError, match="no templates yet"):
                family_for(target)


@pytest.mark.parametrize(
    ("target", "family"),
    [("cpu", "sm80"), ("sm80", "cpu"), ("sm75", "sm80"), ("sm80", "sm75"), ("sm80", "nope")],
)
def test_families_that_cannot_serve(target, family):
    with pytest.raises(TargetError, match="family"):
        family_for(TARGETS[target], family)


@pytest.mark.parametrize(
    ("target", "family", "built"),
    [
        ("sm90", None, "sm90"),
        ("sm90", "sm80", "sm90"),
        ("sm90", "sm75", "sm75"),  # as PTX
        ("sm75", "sm75", "sm75"),
        ("sm75", None, "sm75"),
        ("cpu", "sm75", "cpu"),  # which family_for refuses
    ],
)
def test_a_family_of_one_target_is_built_for_it(target, family, built):
    assert target_for_family(TARGETS[target], family).name == built


def test_limits_are_of_the_right_order():
    for target in TARGETS.values():
        if target.is_cpu:
            continue
        # a block may opt in to all of an SM's shared memory but the 1 KiB the system keeps
        assert 0 <= target.smem_per_sm_bytes - target.max_smem_bytes <= 1024, target.name
        assert target.registers_per_sm == 65_536
