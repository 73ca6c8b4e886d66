from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashgen import flash_attn
from flashgen.runtime import calls


def draw():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 9, 2, 16, generator=generator).requires_grad_() for _ in range(3)]


def step(_=0):
    q, k, v = draw()
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
    return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]


def test_threads_that_call_first_at_once():
    calls.forget()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(step, range(16)))
    for results in found:
        assert all(torch.equal(one, other) for one, other in zip(results, found[0], strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_computes():
    with torch.no_grad():
        q, k, v = draw()
        expected = flash_attn.flash_attn_func(q, k, v, causal=True)
        child = os.fork()
        if child == 0:
            same = torch.equal(flash_attn.flash_attn_func(q, k, v, causal=True), expected)
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
