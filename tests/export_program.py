"""Exported kernels with a C main: built by a compiler, run without Python, against torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from flashgen.generator.arch import parse_target
from flashgen.generator.export import Exported, export
from flashgen.generator.plan import plan
from flashgen.generator.spec import load_specs
from flashgen.generator.variant import PASSES, Variant, parse_key

MAIN = Path(__file__).with_name("export_main.c")
BATCH, SEQLEN_Q, SEQLEN_K, HEADS, HEADS_KV = 2, 65, 70, 4, 2
SCALE, CAP = 0.125, 5.0
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16}
DOCUMENTS = """
name: documents
head_dim: 32
dtype: {dtype}
captures:
  doc: {{dims: [batch, seqlen_k], dtype: int32}}
  slope: {{dims: [num_heads], dtype: fp32, grad: true}}
params:
  cap: {{runtime: float}}
mask: "doc[b, q_idx] == doc[b, kv_idx]"
score: "cap * tanh((score - slope[h] * (q_idx - kv_idx)) / cap)"
"""
"""A program with captures, one of which has a gradient, and a run-time param."""


def documents(dtype: str) -> Variant:
    (spec,) = load_specs(DOCUMENTS.format(dtype=dtype), "documents.yaml")
    return spec.variants[0]


def exported(variant: Variant | str, target: str, folder: Path, name: str = "attn") -> Exported:
    """Both passes of ``variant`` as files in ``folder``."""
    variant = parse_key(variant) if isinstance(variant, str) else variant
    files = export([plan(variant, p, parse_target(target)) for p in PASSES], name)
    (folder / files.source_name).write_text(files.source)
    (folder / files.header_name).write_text(files.header)
    return files


def main_flags(variant: Variant, name: str = "attn") -> list[str]:
    """What export_main.c is to be compiled with."""
    sizes = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
    flags = [f"-DNAME={name}", f'-DHEADER="{name}.h"', f"-DHEAD_DIM={variant.head_dim}"]
    flags += [f"-DELEMENT={sizes[variant.dtype]}"]
    flags += [f"-DREAL={'double' if variant.dtype == 'fp64' else 'float'}"]
    return flags + (["-DDOCUMENTS"] if variant.body else [])


def inputs(variant: Variant) -> list[torch.Tensor]:
    """q, k, v, dout, dlse, and doc and slope of DOCUMENTS."""
    generator = torch.Generator().manual_seed(7)
    dtype = DTYPES[variant.dtype]
    real = torch.float64 if variant.dtype == "fp64" else torch.float32

    def normal(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    d = variant.head_dim
    found = [normal(BATCH, SEQLEN_Q, HEADS, d), normal(BATCH, SEQLEN_K, HEADS_KV, d)]
    found += [normal(BATCH, SEQLEN_K, HEADS_KV, d), normal(BATCH, SEQLEN_Q, HEADS, d)]
    found += [normal(BATCH, HEADS, SEQLEN_Q, dtype=real)]
    if variant.body:
        found += [torch.arange(SEQLEN_K).int().div(20, rounding_mode="floor").repeat(BATCH, 1)]
        found += [torch.rand(HEADS, generator=generator)]
    return found


def expected(variant: Variant, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """out, lse, dq, dk, dv, and dslope of DOCUMENTS, by torch in fp64."""
    q, k, v, dout, dlse, *more = (t.double() if t.is_floating_point() else t for t in given)
    leaves = [t.requires_grad_() for t in (q, k, v, *more[1:])]
    k, v = (t.repeat_interleave(HEADS // HEADS_KV, 2) for t in (k, v))
    score = SCALE * torch.einsum("bqhd,bkhd->bhqk", q, k)
    q_idx, kv_idx = torch.arange(SEQLEN_Q)[:, None], torch.arange(SEQLEN_K)
    visible = torch.ones(BATCH, 1, SEQLEN_Q, SEQLEN_K, dtype=torch.bool)
    if variant.causal:
        visible = visible & (kv_idx <= q_idx + SEQLEN_K - SEQLEN_Q)
    if more:
        doc, slope = more
        score = CAP * torch.tanh((score - slope[:, None, None] * (q_idx - kv_idx)) / CAP)
        visible = visible & (doc[:, None, :SEQLEN_Q, None] == doc[:, None, None])
    score = score.masked_fill(~visible, -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", score.softmax(-1), v)
    lse = score.logsumexp(-1)
    return [out, lse, *torch.autograd.grad((out, lse), leaves, (dout, dlse))]


def run(program: Path, variant: Variant) -> str:
    """Run the program in an empty environment, and compare all that it gives; its messages."""
    given = inputs(variant)
    stored = list(given)
    stored[1] = given[1].transpose(1, 2)  # k: strides are read
    data = b"".join(bytes(t.contiguous().view(torch.uint8).flatten().tolist()) for t in stored)
    done = subprocess.run([program], input=data, capture_output=True, env={})
    assert done.returncode == 0, done.stderr
    tolerance = {"fp64": 1e-11, "fp32": 2e-5, "fp16": 2e-2}[variant.dtype]
    left = done.stdout
    names = ("out", "lse", "dq", "dk", "dv", "dslope")
    real = torch.float64 if variant.dtype == "fp64" else torch.float32
    wanted = expected(variant, given)
    for name, want in zip(names, wanted, strict=False):
        dtype = real if name in ("lse", "dslope") else DTYPES[variant.dtype]
        size = want.numel() * dtype.itemsize
        got = torch.frombuffer(bytearray(left[:size]), dtype=dtype).view(want.shape).double()
        left = left[size:]
        error = (got - want).abs().max() / want.abs().max()
        assert error < tolerance, f"{variant.key}: {name}: relative error {error}"
    assert not left
    return done.stderr.decode()


MESSAGES = (
    "1 attn_forward: expected num_heads to be a multiple of num_heads_kv, got 4 and 3",
    "1 attn_forward: q: expected a pointer, got null",
    "1 attn_forward: softmax_scale: expected a positive number, got 0",
    "1 attn_backward: workspace: expected ",
    "1 attn_forward: seqlen_k: expected an integer in [1, 1073741824], got 0",
    "1 attn_forward: doc: expected size 70 in dimension 1, got 65",
)
"""Beginnings of what a run's messages must be, the last one of DOCUMENTS alone."""


def check_messages(text: str, variant: Variant) -> None:
    lines = text.splitlines()
    wanted = MESSAGES if variant.body else MESSAGES[:-1]
    assert len(lines) == len(wanted), text
    for line, start in zip(lines, wanted, strict=True):
        assert line.startswith(start), line
