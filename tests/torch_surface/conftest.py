"""What the tests of the torch surface share: one cache for all of them, and a dense formula."""

from __future__ import annotations

import math
import shutil

import pytest
import torch

from flashgen.runtime import calls


@pytest.fixture(scope="session")
def surface_folder(tmp_path_factory):
    """Where this folder's tests keep kernels, with a compiler that doesn't optimise."""
    folder = tmp_path_factory.mktemp("surface")
    compiler = folder / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -O0\n')
    compiler.chmod(0o755)
    return folder


@pytest.fixture(scope="module", autouse=True)
def surface_cache(surface_folder):
    """A cache of this folder's own, and no kernel remembered from elsewhere."""
    calls.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(surface_folder / "cache"))
        patch.setenv("CXX", str(surface_folder / "g++"))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.delenv("FLASHGEN_SPECS", raising=False)
        yield
    calls.forget()


@pytest.fixture
def chosen(monkeypatch):
    """The keys of kernels that calls of new kinds have asked for, in order."""
    calls.forget()
    keys = []
    find = calls.find_kernel

    def noted(key, device, passes):
        keys.append(key)
        return find(key, device, passes)

    monkeypatch.setattr(calls, "find_kernel", noted)
    return keys


@pytest.fixture
def dense():
    """(out, lse) by the formula of flash_attn, of (batch, seqlen, heads, head_dim), in fp64."""

    def formula(q, k, v, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None):
        q, k, v = q.double(), k.double(), v.double()
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or 1 / math.sqrt(q.shape[3]))
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        i = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        j = torch.arange(k.shape[1])
        if slopes is not None:
            scores = scores - slopes.double().view(-1, q.shape[2], 1, 1) * (i - j).abs()
        left, right = window[0], 0 if causal else window[1]
        seen = torch.ones(len(i), len(j), dtype=torch.bool)
        seen &= (j >= i - left) if left >= 0 else seen
        seen &= (j <= i + right) if right >= 0 else seen
        scores = scores.masked_fill(~seen, -math.inf)
        lse = scores.logsumexp(-1)
        weights = (scores - lse.nan_to_num(neginf=0.0).unsqueeze(-1)).exp()
        return torch.einsum("bhij,bjhd->bihd", weights, v), lse

    return formula
