"""Skips what this machine can't run, with the reason, and says how many tests need a GPU."""

from __future__ import annotations

import ctypes
import functools

import pytest

_gpu_tests = pytest.StashKey[int]()


@functools.cache
def missing_gpu() -> str:
    """Why `gpu` tests can't run here; empty where they can."""
    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA device (sm80 or later) and a CUDA build of torch: torch sees none"
    major, minor = torch.cuda.get_device_capability()
    if major < 8:
        return f"needs a CUDA device of sm80 or later, this one is sm{major}{minor}"
    return missing_nvcc()


@functools.cache
def missing_nvcc() -> str:
    """Why `nvcc` tests can't run here; empty where they can."""
    from flashgen.generator.errors import ToolchainError
    from flashgen.runtime.toolchain import find_nvcc

    try:
        find_nvcc()
    except ToolchainError as error:
        return f"needs nvcc: {error}"
    return ""


def pytest_collection_modifyitems(config, items):
    for item in items:
        for mark, missing in (("gpu", missing_gpu), ("nvcc", missing_nvcc)):
            if item.get_closest_marker(mark) and missing():
                item.add_marker(pytest.mark.skip(reason=missing()))
                break
    config.stash[_gpu_tests] = sum(1 for i in items if i.get_closest_marker("gpu"))


def pytest_terminal_summary(terminalreporter, config):
    count = config.stash.get(_gpu_tests, 0)
    if count:
        reason = missing_gpu()
        state = f"skipped here: {reason}" if reason else "run here"
        terminalreporter.write_line(f"{count} tests need a GPU; {state}.")


class _Device(ctypes.Structure):
    """DLPack's DLDevice."""

    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


@pytest.fixture
def claim_device():
    """Makes a compiled pass see a torch tensor on the DLPack device (kind, index)."""

    def claim(tensor, kind, index=0):
        import tvm_ffi

        view = tvm_ffi.from_dlpack(tensor)
        # the object's header (24 bytes), then the DLTensor: its pointer, then its device
        _Device.from_address(view.__chandle__() + 24 + 8).kind = kind
        _Device.from_address(view.__chandle__() + 24 + 8).index = index
        assert view.device.dlpack_device_type() == kind and view.device.index == index
        return view

    return claim
