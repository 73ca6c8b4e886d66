"""What a compiled pass itself checks of the tensors that it is given, behind Python's checks."""

from __future__ import annotations

import pytest
import torch

from flashgen.runtime.loader import load_pass

CPU, CUDA, CUDA_HOST = 1, 2, 3  # DLPack's device types


@pytest.fixture
def tensors():
    """By pass, the tensors of d8-fp32 as its entry point takes them, and None for the rest."""
    q, k, v, dout, out, dq, dk, dv = torch.randn(8, 1, 5, 2, 8).unbind()
    lse, workspace = torch.zeros(1, 2, 5), torch.zeros(4096, dtype=torch.uint8)
    backward = (dq, dk, dv, dout, q, k, v, out, lse, None, None, workspace)
    return {"forward": (out, lse, q, k, v, None, workspace), "backward": backward}


@pytest.fixture
def call(cache, compiler, request_for):
    """Calls the entry point of a pass, with a scale and no dropout."""
    compiler.write_real()

    def run(pass_name, tensors):
        load_pass(request_for(pass_name=pass_name), cache=cache).function(*tensors, 0.25, 0)

    return run


@pytest.mark.parametrize("pass_name", ["forward", "backward"])
def test_tensors_of_another_device(call, tensors, claim_device, pass_name):
    elsewhere = [t if t is None else claim_device(t, CUDA, 1) for t in tensors[pass_name]]
    message = rf"{pass_name}: expected tensors on the CPU \(DLPack device type 1\), got type 2"
    with pytest.raises(ValueError, match=message):
        call(pass_name, elsewhere)
    mixed = [*tensors[pass_name][:1], *elsewhere[1:]]
    with pytest.raises(ValueError, match=r"expected device \(1, 0\), got \(2, 1\)"):
        call(pass_name, mixed)


def test_pinned_memory_is_the_cpus_too(call, tensors, claim_device):
    out, lse, *_ = tensors["forward"]
    call("forward", tensors["forward"])
    expected = out.clone(), lse.clone()
    out.zero_()
    pinned = [t if t is None else claim_device(t, CUDA_HOST) for t in tensors["forward"]]
    call("forward", pinned)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
