"""diffusers' models by the backend "fgen", against diffusers' own on PyTorch's attention."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("diffusers", minversion="0.36")

from diffusers import FluxTransformer2DModel
from diffusers.models import attention_dispatch as dispatch

from flashgen.generator.errors import ArgumentError, FlashgenError
from flashgen.integrations import diffusers as fgen
from flashgen.runtime import calls

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def registered(kernels):
    active = dispatch._AttentionBackendRegistry.get_active_backend()[0]
    fgen.register()
    yield
    dispatch._AttentionBackendRegistry._active_backend = active


@pytest.fixture
def keys(monkeypatch):
    """The keys of kernels that calls have asked for."""
    calls.forget()
    found = []
    find = calls.find_kernel
    monkeypatch.setattr(calls, "find_kernel", lambda *call: (found.append(call[0]), find(*call))[1])
    return found


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[1]))


def tiny():
    """A Flux of two blocks, one of them of two streams; the same weights each time."""
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def step(model, backend):
    """(outputs, gradients by parameter) of a step."""
    model.set_attention_backend(backend)
    model.zero_grad()
    out = model(
        hidden_states=draw(2, 16, 4), encoder_hidden_states=draw(2, 7, 32),
        pooled_projections=draw(2, 32), timestep=torch.tensor([1.0, 2.0]),
        img_ids=torch.arange(48.0).reshape(16, 3), txt_ids=torch.zeros(7, 3),
    ).sample  # fmt: skip
    out.square().mean().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_a_model_is_the_same_by_both(keys):
    model = tiny()
    expected, expected_grads = step(model, "native")
    assert not keys
    out, grads = step(model, "fgen")
    assert set(keys) == {"d16-fp32"}
    torch.testing.assert_close(out, expected, **TOLERANCE)
    for name, grad in expected_grads.items():
        assert (grad is None) == (grads[name] is None), name
        if grad is not None:
            torch.testing.assert_close(grads[name], grad, **TOLERANCE)


_KEEP = torch.arange(7) < torch.tensor([4, 7])[:, None]


@pytest.mark.parametrize(
    ("options", "native"),
    [
        ({"attn_mask": _KEEP}, {"attn_mask": _KEEP[:, None, None]}),
        ({"attn_mask": draw(5, 7)}, {}),
        ({"is_causal": True, "scale": 0.5}, {}),
    ],
)
def test_masks_and_options_mean_the_same(options, native):
    inputs = draw(2, 5, 2, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16)
    found = []
    for backend, given in (("native", options | native), ("fgen", options)):
        with dispatch.attention_backend(backend):
            found.append(dispatch.dispatch_attention_fn(*inputs, **given))
    torch.testing.assert_close(found[1], found[0], **TOLERANCE)


def test_a_compiled_model_is_one_graph():
    torch._dynamo.reset()
    model = tiny()
    expected, _ = step(model, "fgen")
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(model, "fgen")[0], expected, **TOLERANCE)


def test_registering_again_changes_nothing():
    before = list(dispatch.AttentionBackendName)
    fgen.register()
    assert list(dispatch.AttentionBackendName) == before
    assert dispatch.AttentionBackendName("fgen") is dispatch.AttentionBackendName.FGEN


def test_what_is_refused(monkeypatch):
    q = draw(1, 5, 2, 16)
    for option in ({"return_lse": True}, {"_parallel_config": object()}):
        with pytest.raises(ArgumentError, match="set_attention_backend"):
            fgen.attention_forward(q, q, q, **option)
    monkeypatch.setitem(sys.modules, "diffusers.models", None)
    with pytest.raises(FlashgenError, match=r"expected release 0.36 .*flashgen\[diffusers\]"):
        fgen.register()
