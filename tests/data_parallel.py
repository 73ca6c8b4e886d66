"""A small model of flashgen's attention, its gradients, and a process that trains a share of it.

    python data_parallel.py RANK WORLD FOLDER

joins the others through a file in FOLDER, and leaves the gradients of each way of training there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import flashgen

WIDTH, HEADS, LENGTH = 32, 2, 9
WAYS = ("ddp", "fsdp")
DROPOUTS = (0.0, 0.25)


class Layer(nn.Module):
    """Causal attention with residual; calculated again in the backward where it drops."""

    def __init__(self, dropout_p: float) -> None:
        super().__init__()
        self.dropout_p = dropout_p
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attend = self._attend
        return x + (checkpoint(attend, x, use_reentrant=False) if self.dropout_p else attend(x))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        out = flashgen.attention(q, k, v, causal=True, dropout_p=self.dropout_p)
        return self.out(out.flatten(2))


def model(dropout_p: float) -> nn.Sequential:
    """Two layers, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(Layer(dropout_p), Layer(dropout_p))


def batch() -> torch.Tensor:
    """(4, LENGTH, WIDTH), the same each time."""
    return torch.randn(4, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def loss(made: nn.Module, share: torch.Tensor, rank: int) -> torch.Tensor:
    """The mean over ``share``, with the dropout of process ``rank``."""
    torch.manual_seed(10 + rank)
    return made(share).square().mean()


def _parallel(way: str, made: nn.Sequential) -> nn.Module:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(made)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in made:
        fully_shard(layer, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def _gradients(made: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("module."): getattr(p.grad, "full_tensor", lambda grad=p.grad: grad)()
        for name, p in made.named_parameters()
    }


def main(rank: int, world: int, folder: Path) -> None:
    """Train by each way with and without dropout; a step of it, without an optimizer."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    share = batch().chunk(world)[rank]
    found = {}
    for way in WAYS:
        for dropout_p in DROPOUTS:
            made = _parallel(way, model(dropout_p))
            loss(made, share, rank).backward()
            found[way, dropout_p] = _gradients(made)
    torch.save(found, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
