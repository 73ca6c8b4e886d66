"""Mixed precision: autocast casts as it does for torch's own attention, and gradients scale."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as reference

import flashgen
from flashgen import flash_attn
from flashgen.generator.errors import ArgumentError


def draw(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def heads_first(function):
    return lambda *qkv: function(*(t.transpose(1, 2) for t in qkv)).transpose(1, 2)


def packed(q, k, v):
    offsets = torch.tensor([0, q.shape[1]], dtype=torch.int32)
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    return flash_attn.flash_attn_varlen_func(*flat, offsets, offsets, 9, 9).view(q.shape)


CALLS = {
    "flash_attn": flash_attn.flash_attn_func,
    "qkvpacked": lambda *qkv: flash_attn.flash_attn_qkvpacked_func(torch.stack(qkv, 2)),
    "varlen": packed,
    "attention": flashgen.attention,
    "sdpa": heads_first(flashgen.scaled_dot_product_attention),
    "kernel": lambda *qkv: flashgen.load("d16-fp16", "cpu")(*qkv),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_inputs_are_cast_as_torchs_own_attention_casts_them(name, compiled):
    leaves = draw(*[(1, 9, 2, 16)] * 3)
    ours = CALLS[name]
    if compiled and name != "kernel":
        torch._dynamo.reset()
        ours = torch.compile(ours, fullgraph=True, backend="aot_eager")
    found = []
    for function in (ours, heads_first(reference)):
        with torch.autocast("cpu", torch.float16):
            out = function(*leaves)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    assert found[0][0].dtype is torch.float16
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_what_autocast_leaves_alone():
    exact = draw(*[(1, 9, 2, 16)] * 3, dtype=torch.float64)
    kernel = flashgen.load("d16-fp16", "cpu")
    with torch.autocast("cpu", torch.float16):
        assert flash_attn.flash_attn_func(*exact).dtype is torch.float64
        with pytest.raises(RuntimeError, match="expected 4 dimensions"):
            flash_attn.flash_attn_func(3, *exact[1:])
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="got torch.flo"):
        kernel(*draw(*[(1, 9, 2, 16)] * 3))  # of another dtype than autocast's


class Layer(torch.nn.Module):
    """Projections around attention, in fp32."""

    def __init__(self, attend):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
        self.attend = attend

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, 2, 16)).unbind(2)
        return self.out(self.attend(q, k, v).flatten(2))


def train(layer, scale, steps):
    """(losses, scales) of steps of fp16 training with a GradScaler that starts at ``scale``."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    (x,) = draw((2, 9, 32))
    losses, scales = [], []
    for _ in range(steps):
        with torch.autocast("cpu", torch.float16):
            loss = (layer(x.detach()) - 1).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales


@pytest.mark.parametrize("scale", [2.0**12, 2.0**40])
def test_gradients_are_scaled_and_steps_that_overflow_are_left_out(scale):
    torch.manual_seed(0)
    ours = Layer(flash_attn.flash_attn_func)
    theirs = copy.deepcopy(ours)
    theirs.attend = heads_first(reference)
    found, wanted = train(ours, scale, 6), train(theirs, scale, 6)
    assert found[1] == wanted[1]  # the same steps are left out
    assert (found[1][-1] < scale) == (scale > 2.0**30)
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(wanted[0]), rtol=5e-3, atol=0)
    assert (found[0][-1] < found[0][0]) == (scale < 2.0**30)
