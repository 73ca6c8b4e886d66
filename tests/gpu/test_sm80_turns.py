"""Family sm80: deterministic backwards whose thread blocks take turns are right, to the bit."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
import torch

from flashgen.generator.pins import Pin
from flashgen.generator.spec import load_specs
from flashgen.runtime.arguments import TORCH_DTYPES
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.devices import target_of
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poison")]

SPECS = (
    "{head_dim: 64, dtype: bf16, causal: true}",
    "{head_dim: 64, dtype: fp16, causal: true, dropout: true}",
    "{head_dim: 128, dtype: bf16}",
    "{head_dim: 128, dtype: bf16, causal: true, layout: varlen}",
    "{head_dim: 72, dtype: fp16, causal: true, window: {left: 100, right: 30}}",
    "{head_dim: 256, dtype: bf16, causal: true}",
)
SHAPES = (Shape(2, 4, 2, 113, 203), Shape(1, 3, 1, 300, 130), Shape(1, 1, 1, 1, 1))
LONG = (  # a chain of 160 thread blocks that all wait; many heads; grouped ones
    Shape(1, 1, 1, 20480, 20480),
    Shape(2, 40, 40, 1500, 1500),
    Shape(3, 16, 2, 1000, 2300),
)
REPEATS = 6


def in_turns(text, device):
    spec = load_specs(text[:-1] + ", deterministic: true}", "turns.yaml")[0]
    (variant,) = spec.variants
    target = target_of(device)
    pins = (("takes_turns", True),)
    build([BuildRequest(variant, "backward", target, "sm80", pins)])
    tuning = tuple(Pin(target.name, "backward", name, pin, 0, 0) for name, pin in pins)
    return Kernel(variant, device, spec=replace(spec, tuning=tuning), family="sm80")


@pytest.mark.parametrize("text", SPECS)
def test_gradients_are_right(device, text):
    kernel = in_turns(text, device)
    for shape in SHAPES:
        for name, found in compare_call(kernel, shape, device, backward=True).items():
            assert found.ok, f"{name}, {shape}: {found}"


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("text", SPECS)
def test_gradients_are_the_same_to_the_bit(device, text, shape):
    """The same beside other work, which changes when thread blocks begin."""
    kernel = in_turns(text, device)
    batch, heads, heads_kv, seqlen_q, seqlen_k = astuple(shape)
    size, dtype = kernel.variant.head_dim, TORCH_DTYPES[kernel.variant.dtype]
    packed = kernel.variant.layout == "varlen"

    def normal(length, count):
        sizes = (batch * length,) if packed else (batch, length)
        return torch.randn(*sizes, count, size, device=device, dtype=dtype)

    torch.manual_seed(0)
    q, dout = normal(seqlen_q, heads), normal(seqlen_q, heads)
    k, v = normal(seqlen_k, heads_kv), normal(seqlen_k, heads_kv)
    more = {}
    if packed:
        for name, length in (("cu_seqlens_q", seqlen_q), ("cu_seqlens_k", seqlen_k)):
            more[name] = torch.arange(batch + 1, device=device, dtype=torch.int32) * length
    p = 0.1 if kernel.variant.dropout else 0.0
    out, lse, rng_state = kernel.forward(q, k, v, dropout_p=p, seed=1, offset=4, **more)
    noise, other = torch.randn(2048, 2048, device=device), torch.cuda.Stream()
    found = []
    for repeat in range(REPEATS):
        if repeat % 2:
            with torch.cuda.stream(other):
                for _ in range(4 * repeat):
                    noise @ noise
        found.append(
            kernel.backward(dout, q, k, v, out, lse, dropout_p=p, rng_state=rng_state, **more)
        )
    torch.cuda.synchronize()
    for grads in found[1:]:
        for name in ("dq", "dk", "dv"):
            assert torch.equal(getattr(grads, name), getattr(found[0], name)), name
