"""Kernels that calls will need, built before: docs/pytorch.md's section of it, and its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import flashgen
from flashgen.cli.app import app
from flashgen.generator.errors import CacheError
from flashgen.runtime import bodies, calls

PAGE = Path(__file__).resolve().parents[2] / "docs/pytorch.md"
_CAUSAL, _PADDED = "d16-fp32-causal", f"d16-fp32{bodies.mark_of('bk', 'bool', False)}"


def flashgen_command(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def production(tmp_path, monkeypatch):
    """Nothing is remembered or cached, and nothing may be built."""
    calls.forget()
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("FLASHGEN_BUILD", "never")
    yield
    calls.forget()


def padded(queries=7):
    """A call with a padding mask, and its result and gradients."""
    generator = torch.Generator().manual_seed(0)
    leaves = [
        torch.randn(2, 2, n, 16, generator=generator).requires_grad_() for n in (queries, 7, 7)
    ]
    keep = torch.arange(7) < torch.tensor([4, 7])[:, None]
    out = flashgen.scaled_dot_product_attention(*leaves, attn_mask=keep[:, None, None])
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


def test_a_bundle_serves_calls_where_nothing_is_built(tmp_path, production, monkeypatch):
    bundle = tmp_path / "kernels"
    with pytest.MonkeyPatch.context() as patch:  # a machine with a compiler
        patch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "build"))
        assert "4 kernels" in flashgen_command(
            "bundle", _CAUSAL, _PADDED, "--arch", "cpu", "-o", bundle
        )
        patch.setenv("FLASHGEN_BUILD", "auto")
        expected = padded()
    calls.forget()
    with pytest.raises(CacheError, match=f"flashgen build {_PADDED} --arch cpu"):
        padded()
    monkeypatch.setenv("FLASHGEN_PREBUILT", str(bundle))
    monkeypatch.setenv("CXX", "/bin/false")
    for one, other in zip(padded(), expected, strict=True):
        assert torch.equal(one, other)
    q = torch.zeros(1, 2, 5, 16)
    flashgen.scaled_dot_product_attention(q, q, q, is_causal=True)
    (kernel,) = {plan.kernel for plan in calls._plans.values() if plan.kernel.key == _PADDED}
    compiled = [one.artifact.directory for one in kernel._passes.values()]
    assert len(compiled) == 2 and all(bundle in folder.parents for folder in compiled)
    assert not list((tmp_path / "empty").rglob("*.so"))
    with pytest.raises(CacheError, match="flashgen build .*expected it in the bundle"):
        flashgen.scaled_dot_product_attention(q, q, q)


def test_the_cache_names_the_keys_of_calls_so_far(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    calls.forget()
    padded()
    calls.forget()
    assert _PADDED in flashgen_command("cache", "ls")


def test_the_table_of_masks():
    axes = {"(batch, 1, 1, keys)": "bk", "(queries, keys)": "qk"}
    axes |= {"(batch, 1, queries, keys)": "bqk", "(batch, heads, queries, keys)": "bhqk"}
    rows = re.findall(r"^\| (\(.*?\)) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    found = {shape: cells.split(" | ") for shape, cells in rows if shape in axes}
    kinds = (("bool", False), ("bf16", False), ("fp16", False), ("fp32", False))
    assert found == {
        shape: [f"`{bodies.mark_of(letters, *kind)}`" for kind in kinds]
        for shape, letters in axes.items()
    }
