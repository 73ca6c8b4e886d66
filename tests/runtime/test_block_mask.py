from __future__ import annotations

import pytest
import torch

from flashgen.generator.errors import ArgumentError
from flashgen.generator.spec import load_specs
from flashgen.runtime import block_mask as module


def variant_of(text):
    return load_specs(f"head_dim: 16\ndtype: fp32\n{text}", "test.yaml")[0].variants[0]


def brute(visible, rows, columns):
    blocks = -(-visible.shape[-2] // rows), -(-visible.shape[-1] // columns)
    out = torch.zeros(*visible.shape[:-2], *blocks, dtype=torch.bool)
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            part = visible[..., i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            out[..., i, j] = part.any(-1).any(-1)
    return out


@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_equals_the_dense_mask(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK_ELEMS", chunk)
    variant = variant_of(
        "causal: true\nalibi: true\nblock_mask: {q: 16, kv: 32}\n"
        "captures:\n"
        "  doc: {dims: [batch, seqlen_k], dtype: int32}\n"
        "  bias: {dims: [num_heads], dtype: fp32}\n"
        "mask: (doc[b, kv_idx] + h) % 5 == 0\n"
        "score: score + bias[h]\n"
    )
    doc = torch.randint(0, 100, (2, 75), dtype=torch.int32, generator=torch.manual_seed(0))
    found = module.block_mask(variant, (2, 3, 3, 41, 75), None, None, {"doc": doc})
    i, j = torch.arange(41)[:, None], torch.arange(75)
    heads = torch.arange(3).view(1, 3, 1, 1)
    visible = ((doc.view(2, 1, 1, 75) + heads) % 5 == 0) & (j <= i + 34)
    assert torch.equal(found, brute(visible, 16, 32))
    assert not found.all()


def test_any_block_and_what_is_not_read():
    variant = variant_of("causal: top_left\nsoftcap: runtime\n")
    found = module.block_mask(variant, (1, 1, 1, 300, 300), (100, 50), None, {"softcap": 2.0})
    i, j = torch.arange(300)[:, None], torch.arange(300)
    assert torch.equal(found[0, 0], brute(j <= i, 100, 50))
    assert module.block_mask(variant, (1, 1, 1, 0, 5), None, None, {}).shape == (1, 1, 0, 1)


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("softcap: 2.0\n", {}, "expected a dense variant with a mask, got no mask"),
        ("layout: varlen\ncausal: true\n", {}, "got packed sequences"),
        ("causal: true\n", {"dok": 1}, "expected no captures"),
    ],
)
def test_what_is_refused(text, given, message):
    with pytest.raises(ArgumentError, match=message):
        module.block_mask(variant_of(text), (1, 1, 1, 8, 8), None, None, given)
