"""DDP and FSDP: two processes, a half of the batch each, against one with the whole of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import data_parallel
import pytest
import torch

import flashgen

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="needs a torch with gloo",
)
WORLD = 2
_SECONDS = 240  # of processes that wait for each other in vain


@pytest.fixture(scope="module")
def alone():
    """Gradients of one process by the dropout; it also builds what the two will load.

    Dropout counts batch entries from 0 in each process, so the halves are two calls here.
    """
    found = {}
    for dropout_p in data_parallel.DROPOUTS:
        made = data_parallel.model(dropout_p)
        if dropout_p:
            halves = enumerate(data_parallel.batch().chunk(WORLD))
            sum(data_parallel.loss(made, half, rank) for rank, half in halves).div(WORLD).backward()
        else:
            data_parallel.loss(made, data_parallel.batch(), 0).backward()
        found[dropout_p] = {name: p.grad for name, p in made.named_parameters()}
    return found


@pytest.fixture(scope="module")
def together(alone, surface_cache, tmp_path_factory):
    """What each of the processes found, by (way, dropout)."""
    folder = tmp_path_factory.mktemp("processes")
    source = Path(flashgen.__file__).parents[1]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(source)}
    command = [sys.executable, data_parallel.__file__]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(WORLD), str(folder)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        for process in started:
            _, errors = process.communicate(timeout=_SECONDS)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in started:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("dropout_p", data_parallel.DROPOUTS)
@pytest.mark.parametrize("way", data_parallel.WAYS)
def test_gradients_are_those_of_one_process(together, alone, way, dropout_p):
    for found in together:
        assert found[way, dropout_p].keys() == alone[dropout_p].keys()
        for name, grad in found[way, dropout_p].items():
            torch.testing.assert_close(grad, alone[dropout_p][name], rtol=1e-5, atol=1e-7)


def test_dropout_is_each_processs_own(alone):
    """Else the test above could not tell one rank's mask from the other's."""
    made = data_parallel.model(data_parallel.DROPOUTS[1])
    first, second = data_parallel.batch().chunk(WORLD)
    with torch.no_grad():
        losses = [[data_parallel.loss(made, h, rank) for rank in (0, 1)] for h in (first, second)]
    assert all(one != other for one, other in losses)
