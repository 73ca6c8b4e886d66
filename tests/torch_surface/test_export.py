"""torch.export of modules that call flashgen: one graph, any length, saved and loaded again."""

from __future__ import annotations

import io

import pytest
import torch

import flashgen
from flashgen import flash_attn
from flashgen.runtime import ops


def draw(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


class Module(torch.nn.Module):
    """``function`` with a learned factor of q."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.factor = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, q, k, v):
        return self.function(q * self.factor, k, v)


def masked(q, k, v):
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    out = flashgen.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), mask)
    return out.transpose(1, 2)


def windowed(q, k, v):
    slopes = torch.tensor([0.5, 0.25])
    return flash_attn.flash_attn_func(q, k, v, window_size=(4, 1), softcap=2.0, alibi_slopes=slopes)


CALLS = {
    "flash_attn": lambda q, k, v: flash_attn.flash_attn_func(q, k, v, causal=True),
    "windowed": windowed,
    "sdpa": masked,
    "kernel": lambda q, k, v: flashgen.load("d16-fp32-causal", "cpu")(q, k, v),
}


def exported(function, strict=False):
    """The program of calls of any length, and the module it is of."""
    module = Module(function)
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {name: {1: length} for name in "qkv"}
    inputs = tuple(draw(*[(1, 9, 2, 16)] * 3))
    return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict), module


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_program_of_any_length_and_its_gradients(name, strict):
    kernel = flashgen.load("d16-fp32-causal", "cpu")  # loading is no part of a graph
    program, module = exported(kernel if name == "kernel" else CALLS[name], strict)
    calls = [node for node in program.graph.nodes if "flashgen.forward" in str(node.target)]
    assert len(calls) == 1
    for length in (9, 21):
        inputs = draw(*[(1, length, 2, 16)] * 3)
        found = []
        for run in (program.module(), module):
            out = run(*inputs)
            factor = next(run.parameters())
            found.append([out, *torch.autograd.grad(out.square().sum(), factor)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["flash_attn", "windowed", "sdpa"])
def test_a_saved_program_loads_what_it_runs_and_no_more(name):
    program, module = exported(CALLS[name])
    (call,) = (node for node in program.graph.nodes if "flashgen.forward" in str(node.target))
    handle = call.args[4]
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    ops._runners.pop(handle)  # as in a process that only runs the program
    inputs = draw(*[(1, 13, 2, 16)] * 3)
    with torch.no_grad():
        out = torch.export.load(buffer).module()(*inputs)
        loaded = ops._runners[handle]
        assert [name for _, name in loaded._passes] == ["forward"]
        assert torch.equal(out, module(*inputs))


def test_a_program_draws_its_dropout_anew():
    def dropping(q, k, v):
        return flash_attn.flash_attn_func(q, k, v, dropout_p=0.5)

    program, _ = exported(dropping)
    inputs = draw(*[(1, 13, 2, 16)] * 3)
    torch.manual_seed(3)
    first, second = (program.module()(*inputs) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(program.module()(*inputs), first)
    assert not torch.equal(first, second)
