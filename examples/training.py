"""What the training examples share: a transformer, its training by several attentions, results.

All attentions train at once: each step gives every model the same batch, in an order that rotates,
and times it alone. The text is the standard library's source, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from flashgen.runtime.bench import record

COLOURS = ("#888", "#d60", "#06c", "#393")


@dataclass(frozen=True, eq=False)
class Call:
    """One layer's attention.

    Attributes:
        q: (batch, seqlen, heads, head_dim); k, v and the result too.
        k: likewise.
        v: likewise.
        mask: of the batch.
        dropout_p: 0 outside of training.
        options: of the command line.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    dropout_p: float
    options: argparse.Namespace

    def heads_first(self) -> tuple[torch.Tensor, ...]:
        """q, k, v as (batch, heads, seqlen, head_dim)."""
        return self.q.transpose(1, 2), self.k.transpose(1, 2), self.v.transpose(1, 2)


Attend = Callable[[Call], torch.Tensor]


def explicit(call: Call, hidden: torch.Tensor) -> torch.Tensor:
    """Attention by explicit operations; ``hidden`` is true where a query doesn't see a key."""
    q, k, v = call.heads_first()
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype)
    return (functional.dropout(weights, call.dropout_p) @ v).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Batch:
    """What a step trains on.

    Attributes:
        ids: (batch, seqlen) of the inputs.
        targets: (batch, seqlen), -100 where nothing is to be learned.
        pairs: of a query and a key that attention needs, over the batch.
        mask: what attention is given besides; None for nothing.
    """

    ids: torch.Tensor
    targets: torch.Tensor
    pairs: int
    mask: torch.Tensor | None = None


@dataclass(frozen=True)
class Example:
    """What tells one example from another.

    Attributes:
        name: of its folder of results.
        attentions: functions by name.
        batch: (text, options, generator) -> what a step trains on.
        defaults: options and their values.
        tiny: those that ``--tiny`` changes.
        checkpointed: whether activations of a block are computed again in the backward.
    """

    name: str
    attentions: Mapping[str, Attend]
    batch: Callable[[torch.Tensor, argparse.Namespace, torch.Generator], Batch]
    defaults: Mapping[str, int | float]
    tiny: Mapping[str, int | float]
    checkpointed: bool = False


@dataclass
class Run:
    """One attention's model and what its training gave.

    Attributes:
        losses: of each step.
        seconds: of each step.
        peak_bytes: most that a step took besides weights and optimizer; None on the CPU.
    """

    attention: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Report:
    """A run in numbers; of times, the medians of steps but the first few."""

    attention: str
    step_ms: float
    quartiles_ms: tuple[float, float]
    tokens_per_s: float
    tflop_per_s: float
    peak_bytes: int | None
    losses: list[float]


class Block(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, options: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        width = options.width
        self.options, self.attend = options, attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(options.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(batch, seqlen, width) of the same."""
        qkv = self.qkv(self.norms[0](x)).unflatten(2, (3, self.options.heads, -1)).unbind(2)
        p = self.options.dropout if self.training else 0.0
        x = x + self.drop(self.out(self.attend(Call(*qkv, mask, p, self.options)).flatten(2)))
        return x + self.drop(self.mlp(self.norms[1](x)))


class Transformer(nn.Module):
    """A model of GPT-2's shape; the head's weights are the embedding's."""

    def __init__(self, options: argparse.Namespace, attend: Attend, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.places = nn.Embedding(options.seqlen, options.width)
        self.blocks = nn.ModuleList(Block(options, attend) for _ in range(options.layers))
        self.norm, self.drop = nn.LayerNorm(options.width), nn.Dropout(options.dropout)
        for weights in (self.tokens.weight, self.places.weight):
            nn.init.normal_(weights, std=0.02)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Logits, (batch, seqlen, vocabulary), of ids (batch, seqlen)."""
        x = self.drop(self.tokens(ids) + self.places.weight[: ids.shape[1]])
        for block in self.blocks:
            x = (
                checkpoint(block, x, mask, use_reentrant=False)
                if self.checkpointed
                else block(x, mask)
            )
        return functional.linear(self.norm(x), self.tokens.weight)


def read_text(size: int) -> torch.Tensor:
    """At least ``size`` bytes of the standard library's modules, where it has as many."""
    text = b""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= size:
            break
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def rows_of(
    text: torch.Tensor, count: int, length: int, generator: torch.Generator
) -> torch.Tensor:
    """``count`` places of the text, (count, length)."""
    starts = torch.randint(len(text) - length, (count,), generator=generator)
    return torch.stack([text[start : start + length] for start in starts]).long()


def train(example: Example, options: argparse.Namespace) -> list[Report]:
    """Train one model by each attention; the same weights and batches for all."""
    device = torch.device(options.device)
    runs = []
    for name in options.attentions:
        torch.manual_seed(0)
        model = Transformer(options, example.attentions[name], example.checkpointed).to(device)
        fused = {"fused": True} if device.type == "cuda" else {}
        runs.append(Run(name, model, torch.optim.AdamW(model.parameters(), lr=options.lr, **fused)))
    text, generator = read_text(options.text_bytes), torch.Generator().manual_seed(1)
    flop = 0
    for index in range(options.steps):
        batch = example.batch(text, options, generator)
        flop += _flop(options, runs[0].model, batch)
        tensors = [None if t is None else t.to(device)
                   for t in (batch.ids, batch.targets, batch.mask)]  # fmt: skip
        turn = index % len(runs)
        for run in (*runs[turn:], *runs[:turn]):
            _step(run, options, index, *tensors)
    return [_report(run, options, flop / options.steps) for run in runs]


def _step(
    run: Run,
    options: argparse.Namespace,
    index: int,
    ids: torch.Tensor,
    targets: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    """One step of training, timed; its loss and memory are noted."""
    run.optimizer.param_groups[0]["lr"] = options.lr * min(1.0, (index + 1) / options.warmup)
    device, before = ids.device, 0
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16):
        logits = run.model(ids, mask)
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    loss.backward()
    run.optimizer.step()
    run.losses.append(round(loss.item(), 5))  # waits for the step
    run.seconds.append(time.perf_counter() - start)
    if device.type == "cuda":
        run.peak_bytes = max(run.peak_bytes or 0, torch.cuda.max_memory_allocated() - before)
    run.optimizer.zero_grad()


def _flop(options: argparse.Namespace, model: nn.Module, batch: Batch) -> int:
    """Of a step: each weight is used once and has two gradients; attention by its pairs."""
    weights = sum(p.numel() for p in model.parameters()) - model.places.weight.numel()
    return 6 * weights * batch.ids.numel() + 12 * options.layers * options.width * batch.pairs


def _report(run: Run, options: argparse.Namespace, flop: float) -> Report:
    seconds = run.seconds[min(5, len(run.seconds) // 2) :]  # the first ones may build kernels
    step = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    tokens = options.batch * options.seqlen
    quartiles = (round(1e3 * low, 3), round(1e3 * high, 3))
    tokens_per_s, tflop_per_s = (float(f"{n:.5g}") for n in (tokens / step, flop / step / 1e12))
    return Report(
        run.attention, round(1e3 * step, 3), quartiles, tokens_per_s, tflop_per_s,
        run.peak_bytes, run.losses,
    )  # fmt: skip


def plot(reports: list[Report], file: Path) -> None:
    """The loss curves, overlaid, as an SVG."""
    top = max(max(report.losses) for report in reports)
    lines = []
    for row, (report, colour) in enumerate(zip(reports, COLOURS, strict=False)):
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


def write(example: Example, options: argparse.Namespace, reports: list[Report]) -> None:
    """The record and the curves, in ``options.out``."""
    device = torch.device(options.device)
    shown = {name: value for name, value in vars(options).items() if name not in ("out", "commit")}
    found: dict[str, Any] = {
        "benchmark": f"examples/{example.name}",
        "date": record.now(),
        "commit": options.commit or record.commit_of_checkout(),
        "method": "all attentions in one process, each step the same batch to every model in an "
        "order that rotates, the device idle before each; medians of all steps but the first five",
        "device": {"name": record.device_model(device)},
        "versions": record.describe_versions(device),
        "options": shown,
        "runs": [asdict(report) for report in reports],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1)
    curves = [json.dumps(report.losses, indent=1) for report in reports]
    for report, curve in zip(reports, curves, strict=True):  # a line for each curve
        text = text.replace(curve.replace("\n", "\n   "), json.dumps(report.losses))
    (options.out / f"{example.name}.json").write_text(text + "\n", encoding="utf-8")
    plot(reports, options.out / f"{example.name}.svg")


def parse(example: Example, about: str, arguments: list[str] | None) -> argparse.Namespace:
    """The options of a command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in example.defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--attentions", nargs="+", choices=[*example.attentions],
                        default=[*example.attentions])  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs"), help="a folder for the results")
    parser.add_argument("--commit", default="", help="of this checkout, where git doesn't tell it")
    parser.add_argument("--tiny", action="store_true", help="a model for a CPU and a few seconds")
    options = parser.parse_args(arguments)
    if options.tiny:
        vars(options).update(example.tiny)
    return options


def main(example: Example, about: str, arguments: list[str] | None = None) -> None:
    """Train by each attention, print and write the results."""
    options = parse(example, about, arguments)
    reports = train(example, options)
    for report in reports:
        peak = "" if report.peak_bytes is None else f", peak {report.peak_bytes / 2**30:.2f} GiB"
        tail = report.losses[-min(100, len(report.losses) // 2 or 1) :]
        print(
            f"{report.attention:>8}: {report.step_ms:.1f} ms, {report.tokens_per_s:.6g} tokens/s, "
            f"{report.tflop_per_s:.3g} TFLOP/s{peak}, loss {statistics.mean(tail):.3f} over the "
            f"last {len(tail)} steps"
        )
    write(example, options, reports)
