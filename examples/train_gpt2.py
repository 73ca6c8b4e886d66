"""Trains a GPT-2-shaped model twice, with eager attention and with flashgen, and compares.

The text is the standard library's source, byte by byte. Prints tokens/s, TFLOP/s and peak memory of
both; writes them as JSON, and the two loss curves as one SVG. On a GPU:

    python examples/train_gpt2.py --seqlen 4096 --batch 4 --steps 500 --out runs/gpt2
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import flashgen

VOCABULARY = 50304  # GPT-2's, padded; bytes use the first 256


@dataclass(frozen=True)
class Report:
    """What one run of training gave."""

    attention: str
    tokens_per_s: float
    tflop_per_s: float
    peak_bytes: int | None
    losses: list[float]


class Block(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, width: int, heads: int, dropout: float, attention: str) -> None:
        super().__init__()
        self.heads, self.dropout, self.attention = heads, dropout, attention
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, seqlen, width) of the same."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).unbind(2)
        p = self.dropout if self.training else 0.0
        attend = eager if self.attention == "eager" else flashgen.attention
        x = x + self.out(attend(q, k, v, causal=True, dropout_p=p).flatten(2))
        return x + self.mlp(self.norms[1](x))


def eager(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, dropout_p: float
) -> torch.Tensor:
    """Attention by explicit operations, causal whatever ``causal`` says."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1).to(v.dtype)
    weights = functional.dropout(weights, dropout_p)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


class GPT2(nn.Module):
    """A model of GPT-2's shape; the head's weights are the embedding's."""

    def __init__(self, options: argparse.Namespace, attention: str) -> None:
        super().__init__()
        width = options.width
        self.tokens = nn.Embedding(options.vocabulary, width)
        self.places = nn.Embedding(options.seqlen, width)
        self.blocks = nn.Sequential(
            *(Block(width, options.heads, options.dropout, attention)
              for _ in range(options.layers))
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        for weights in (self.tokens.weight, self.places.weight):
            nn.init.normal_(weights, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits, (batch, seqlen, vocabulary), of ids (batch, seqlen)."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


def read_text(size: int) -> torch.Tensor:
    """At least ``size`` bytes of the standard library's modules, where it has as many."""
    text = b""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= size:
            break
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def train(options: argparse.Namespace, attention: str) -> Report:
    """One run of training; the same weights and batches for either attention."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = GPT2(options, attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    text = read_text(options.text_bytes)
    order = torch.Generator().manual_seed(1)
    losses, seconds = [], []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(options.steps):
        starts = torch.randint(len(text) - options.seqlen - 1, (options.batch,), generator=order)
        rows = torch.stack([text[s : s + options.seqlen + 1] for s in starts]).long().to(device)
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the step
        seconds.append(time.perf_counter() - start)
    step = sorted(seconds[1:] or seconds)[len(seconds[1:]) // 2]  # the first may build kernels
    tokens = options.batch * options.seqlen
    weights = sum(p.numel() for p in model.parameters()) - model.places.weight.numel()
    # half of the scores of causal attention are needed: 6 * layers * width * seqlen of 12
    flop = tokens * (6 * weights + 6 * options.layers * options.width * options.seqlen)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return Report(attention, tokens / step, flop / step / 1e12, peak, losses)


def plot(reports: list[Report], file: Path) -> None:
    """The loss curves, overlaid, as an SVG."""
    top = max(max(report.losses) for report in reports)
    lines = []
    for row, (report, colour) in enumerate(zip(reports, ("#888", "#06c"), strict=True)):
        last = max(len(report.losses) - 1, 1)
        points = " ".join(
            f"{40 + 540 * i / last:.1f},{280 - 260 * loss / top:.1f}"
            for i, loss in enumerate(report.losses)
        )
        lines.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
        lines.append(f'<text x="440" y="{30 + 18 * row}" fill="{colour}">{report.attention}</text>')
    axes = '<path d="M40 20V280H580" fill="none" stroke="#000"/><text x="4" y="284">0</text>'
    axes += f'<text x="4" y="26">{top:.1f}</text>'
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" font-size="14">'
    file.write_text("\n".join((head, axes, *lines, "</svg>\n")), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Run both and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    numbers = {"layers": 12, "heads": 12, "width": 768, "seqlen": 1024, "batch": 8, "steps": 500}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--out", type=Path, default=Path("runs/gpt2"))
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU and a few seconds")
    options = parser.parse_args(arguments)
    options.vocabulary, options.text_bytes = VOCABULARY, 5_000_000
    if options.tiny:
        options.layers, options.heads, options.width, options.vocabulary = 2, 2, 32, 256
        options.seqlen, options.batch, options.steps, options.lr = 48, 4, 30, 3e-3
        options.text_bytes = 100_000
    reports = [train(options, attention) for attention in ("eager", "flashgen")]
    for report in reports:
        peak = "" if report.peak_bytes is None else f", peak {report.peak_bytes / 2**30:.2f} GiB"
        print(
            f"{report.attention:>8}: {report.tokens_per_s:.0f} tokens/s, "
            f"{report.tflop_per_s:.3g} TFLOP/s{peak}, last loss {report.losses[-1]:.3f}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    record = {
        "options": vars(options) | {"out": str(options.out)},
        "runs": list(map(asdict, reports)),
    }
    (options.out / "train.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    plot(reports, options.out / "loss.svg")


if __name__ == "__main__":
    main()
