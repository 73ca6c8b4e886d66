"""docs/pytorch.md's example of FlexAttention, against FlexAttention itself."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import flashgen

PAGE = Path(__file__).resolve().parents[2] / "docs/pytorch.md"


def test_the_example_of_flex_attention(tmp_path):
    (spec,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "documents.yaml"
    file.write_text(spec, "utf-8")
    kernel = flashgen.load(file, "cpu")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 24, 2, 16, generator=generator) for _ in range(3))
    doc, bias = (torch.arange(24) // 7).int(), torch.tensor([0.5, -0.25])

    def mask_mod(b, h, q_idx, kv_idx):
        return (doc[q_idx] == doc[kv_idx]) & (kv_idx <= q_idx)

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + bias[h] * (q_idx - kv_idx)

    blocks = create_block_mask(mask_mod, None, None, 24, 24, device="cpu")
    heads_first = (t.transpose(1, 2) for t in (q, k, v))
    options = {"score_mod": score_mod, "block_mask": blocks, "return_lse": True}
    expected, expected_lse = flex_attention(*heads_first, **options)
    out, lse = kernel(q, k, v, doc=doc, bias=bias, return_lse=True)
    torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-4, atol=1e-5)
