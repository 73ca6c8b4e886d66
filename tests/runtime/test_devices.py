"""Devices and targets; and whether a binary can run on the very device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from flashgen.generator.arch import parse_target
from flashgen.generator.errors import PlanError, TargetError, ToolchainError
from flashgen.runtime import devices
from flashgen.runtime.driver import driver_problem
from flashgen.runtime.manifest import CompilerRecord

CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """Makes torch report one CUDA device of the given kind."""

    def make(capability=(9, 0), smem_bytes=232_448, driver=(13, 0)):
        properties = SimpleNamespace(shared_memory_per_block_optin=smem_bytes)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(devices, "driver_cuda_version", lambda: driver)

    return make


def manifest(target="sm80", smem_bytes=0, nvcc="13.0.88", flags=()):
    return SimpleNamespace(
        key="d64-fp16",
        pass_name="forward",
        target=target,
        smem_bytes=smem_bytes,
        flags=flags,
        compilers=(CompilerRecord("nvcc", "/nvcc", nvcc, ""),),
    )


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "sm80"), ((8, 6), "sm86"), ((9, 0), "sm90"), ((10, 3), "sm100"), ((12, 1), "sm120")],
)
def test_target_of_a_gpu(gpu, capability, target):
    gpu(capability)
    assert devices.target_of(CUDA).name == target
    assert devices.native_targets() == (parse_target(target),)
    assert devices.best_device() == CUDA


def test_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.best_device() == torch.device("cpu")
    assert devices.target_of(torch.device("cpu")).name == "cpu"
    assert [t.name for t in devices.native_targets()] == ["cpu"]


def test_devices_without_a_target(gpu, monkeypatch):
    with pytest.raises(ToolchainError, match="expected cpu or cuda, got meta"):
        devices.target_of(torch.device("meta"))
    gpu((7, 0))
    with pytest.raises(TargetError, match="compute capability 7.0"):
        devices.target_of(CUDA)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ToolchainError, match="found none"):
        devices.target_of(CUDA)


def test_shared_memory_of_the_very_device(gpu):
    gpu((8, 6), smem_bytes=101_376)
    devices.check_device(manifest(smem_bytes=101_376), CUDA)
    with pytest.raises(PlanError, match="needs 101377 bytes of shared memory, cuda:0 allows 10137"):
        devices.check_device(manifest(smem_bytes=101_377), CUDA)


def test_another_kind_of_device(gpu):
    gpu((8, 0))
    with pytest.raises(PlanError, match="target cpu, got cuda:0"):
        devices.check_device(manifest("cpu"), CUDA)
    with pytest.raises(PlanError, match="target sm80, got cpu"):
        devices.check_device(manifest(), torch.device("cpu"))
    with pytest.raises(PlanError, match="sm90 needs compute capability 9.0, cuda:0 has 8.0"):
        devices.check_device(manifest("sm90"), CUDA)


def test_a_driver_older_than_the_toolkit(gpu):
    gpu((8, 0), driver=(12, 8))
    with pytest.raises(ToolchainError, match=r"CUDA 13.0 or newer.*got one for CUDA 12.8"):
        devices.check_device(manifest(), CUDA)


def test_a_cpu_without_the_instructions(monkeypatch):
    monkeypatch.setattr(devices, "cpu_features", lambda: frozenset({"sse2", "fma"}))
    devices.check_device(manifest("cpu"), torch.device("cpu"))
    with pytest.raises(ToolchainError, match="this CPU lacks avx2"):
        devices.check_device(manifest("cpu", flags=("-march=x86-64-v3",)), torch.device("cpu"))


@pytest.mark.parametrize(
    ("toolkit", "driver", "capability", "expected"),
    [
        ((13, 2), (13, 0), (8, 6), None),  # machine code: the minor version doesn't matter
        ((13, 2), (13, 0), (9, 0), "to load PTX"),
        ((13, 0), (13, 0), (9, 0), None),
        ((13, 0), (12, 9), (8, 0), "Update the NVIDIA driver"),
        ((12, 8), (13, 0), (9, 0), None),
        ((13, 2), None, (9, 0), None),  # no driver: nothing can be said
    ],
)
def test_driver_against_toolkit(toolkit, driver, capability, expected):
    problem = driver_problem(toolkit, driver, parse_target("sm80"), capability)
    assert (problem is None) == (expected is None)
    assert expected is None or expected in problem
