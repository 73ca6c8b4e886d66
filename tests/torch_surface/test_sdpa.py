from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as reference

import flashgen
from flashgen.flash_attn import torch_backend
from flashgen.generator.errors import ArgumentError
from flashgen.runtime import bodies, operators, ops

ours = flashgen.scaled_dot_product_attention
ROUGH = {"rtol": 3e-2, "atol": 3e-2}


def draw(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def inputs(seqlen_q=9, seqlen_k=13, heads_kv=4):
    return draw((2, 4, seqlen_q, 16), *[(2, heads_kv, seqlen_k, 16)] * 2)


def compare(tensors, mask=None, tolerance=None, **options):
    """Ours against torch's, results and all gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    if type(mask) is torch.Tensor and mask.is_floating_point():
        mask = mask.detach().clone().requires_grad_()
        leaves.append(mask)
    results = []
    for function in (ours, reference):
        out = function(*leaves[:3], attn_mask=mask, **options)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, **(tolerance or {"rtol": 1e-4, "atol": 2e-5}))


def keys_of(lengths, seqlen_k=13):
    return torch.arange(seqlen_k) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("options", [{"is_causal": True}, {"scale": 0.5}, {"enable_gqa": True}])
def test_options(options):
    compare(inputs(heads_kv=2 if "enable_gqa" in options else 4), **options)


@pytest.mark.parametrize("shape", [(9, 16), (2, 9, 16), (2, 3, 2, 9, 16)])
def test_shapes(shape):
    compare(draw(*[shape] * 3))
    (mask,) = draw((*shape[:-2], 1, 9), seed=1)
    mask[..., 0] = 1.0
    compare(draw(*[shape] * 3), mask > 0)


@pytest.mark.parametrize(
    ("mask", "axes"),
    [
        (keys_of([5, 11])[:, None, None], "bk"),
        (keys_of([5, 11])[:, None, None].expand(2, 1, 9, 13), "bk"),
        (torch.ones(9, 13, dtype=torch.bool).tril(), "qk"),
        (keys_of([5, 11])[:, None, None] & torch.ones(9, 13).tril().bool(), "bqk"),
    ],
)
def test_bool_masks_are_read_as_they_are(chosen, mask, axes):
    compare(inputs(), mask)
    assert set(chosen) == {f"d16-fp32{bodies.mark_of(axes, 'bool', False)}"}


@pytest.mark.parametrize("shape", [(9, 13), (2, 4, 9, 13), (1, 1, 1, 13)])
def test_float_masks_and_their_gradients(shape):
    compare(inputs(), *draw(shape, seed=1))


def test_minus_infinity_hides_a_key_and_a_row_of_it_is_zero():
    (mask,) = draw((2, 1, 9, 13), seed=1)
    mask[:, :, :, 7:] = -math.inf
    mask[0, :, 3] = -math.inf
    compare(inputs(), mask)
    q, k, v = inputs()
    assert (ours(q, k, v, mask)[0, :, 3] == 0).all()
    hidden = k.clone()
    hidden[:, :, 7:] = math.nan
    assert torch.equal(ours(q, hidden, v, mask), ours(q, k, v, mask))


@pytest.mark.parametrize(
    ("dtype", "axes"), [(torch.float32, "qk"), (torch.float32, "k"), (torch.bfloat16, "qk")]
)
def test_the_least_number_hides_a_key_as_torchs_math_does(dtype, axes):
    """A key that has it is of no weight beside others; a row of nothing else is 0, as of bools."""
    least = torch.finfo(dtype).min
    (mask,) = draw((2, 1, 9 if axes == "qk" else 1, 13), seed=1, dtype=dtype)
    mask[..., 7:] = least
    compare(
        [t.to(dtype) for t in inputs()], mask, tolerance=None if dtype is torch.float32 else ROUGH
    )
    empty = mask.clone().requires_grad_()
    with torch.no_grad():
        empty[1, :, -1] = least
    q, k, v = (t.to(dtype).requires_grad_() for t in inputs())
    out = ours(q, k, v, empty)
    rows = (1, slice(None), slice(-1, None) if axes == "qk" else slice(None))
    assert (out[rows] == 0).all() and out[0].any()
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v, empty))
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][rows] == 0).all() and (grads[3][rows] == 0).all()
    boolean = ours(q, k, v, empty > least)  # without what is added: which rows are empty
    assert torch.equal(boolean[rows], out[rows])


@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
def test_torchs_classes_of_causal_masks(chosen, bias):
    q, k, v = inputs()
    dense = torch.ones(9, 13, dtype=torch.bool)
    dense = dense.tril() if bias is causal_upper_left else dense.tril(13 - 9)
    torch.testing.assert_close(ours(q, k, v, bias(9, 13)), reference(q, k, v, dense))
    assert chosen == ["d16-fp32-" + ("causaltl" if bias is causal_upper_left else "causal")]


def test_dropout_is_torchs_and_autocast_too():
    q, k, v = inputs()
    torch.manual_seed(1)
    first = ours(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(first, ours(q, k, v, dropout_p=0.5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(q, k, v).dtype == reference(q, k, v).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.ones(9, 13).bool(), "is_causal": True}, "None with is_causal=True"),
        ({"attn_mask": torch.ones(9, 12).bool()}, "a shape that broadcasts to .2, 4, 9, 13."),
        ({"attn_mask": torch.ones(9, 13).long()}, "dtype torch.bool, .* got torch.int64"),
        ({"key": torch.zeros(2, 2, 13, 16)}, "4 heads as query, got 2. Set enable_gqa=True"),
        ({"key": torch.zeros(4, 13, 16)}, "as many dimensions"),
    ],
)
def test_refusals(options, message):
    call = dict(zip(("query", "key", "value"), inputs(), strict=True)) | options
    with pytest.raises(ArgumentError, match=f"scaled_dot_product_attention: .*{message}"):
        ours(**call)


def test_gradcheck_with_the_gradient_of_a_mask():
    leaves = draw(*[(1, 2, 5, 8)] * 3, (2, 5, 5), dtype=torch.float64)
    assert torch.autograd.gradcheck(ours, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_to_one_graph(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (9, 11):
        leaves = [t.requires_grad_() for t in draw(*[(2, 4, length, 16)] * 3, (length, length))]
        results = []
        for function in (ours, compiled):
            out = function(*leaves)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_key_with_a_mask_stands_for_its_variant():
    key = f"d16-fp32-causal{bodies.mark_of('bk', 'bool', False)}"
    assert bodies.variant_of(key).key == key and bodies.variant_of(key).causal is True
    assert bodies.variant_of("d16-fp32-causal") is None
    assert bodies.variant_of("d16-fp32-00000000") is None


def test_operators_are_torchs(chosen):
    q, k, v = (t.transpose(1, 2).requires_grad_() for t in inputs())
    (mask,) = draw((9, 13))
    ours(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask.requires_grad_())
    arguments = (q, k, v, None, chosen[0], 0.25, 0, [mask.detach()], [], [])
    namespace = getattr(torch.ops, operators.NAMESPACE)
    torch.library.opcheck(namespace.forward, arguments)
    ops._runners.pop(chosen[0])  # as in a process that only runs a saved graph
    assert ops.runner_of(chosen[0], q.device).handle == chosen[0]


def test_operators_of_torchs_flash_backend():
    """What a GPU's scaled_dot_product_attention calls, here put behind the CPU's key."""
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    q, k, v = (t.requires_grad_() for t in inputs())
    active = torch_backend.activate("CPU")
    try:
        for options, mask in (
            ((0.0, False), None),
            ((0.0, True), torch.ones(9, 13, dtype=torch.bool).tril(4)),
        ):
            found = attend(q, k, v, *options)
            expected = reference(q, k, v, mask)
            torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
            grads = [
                torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found[0], expected)
            ]
            for one, other in zip(*grads, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        # compiled graphs count on the strides that torch's own kernels give
        backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
        dout = torch.randn_like(found[0])
        results = backward(dout, q, k, v, *found[:6], 0.0, True, *found[6:8])
        for result, like in zip((found[0], *results), (q, q, k, v), strict=True):
            assert result.stride() == torch.empty_like(like).stride()
        torch.manual_seed(0)
        dropped = attend(q, k, v, 0.5)[0]
        (grad,) = torch.autograd.grad(dropped.sum(), v)
        torch.testing.assert_close((grad * v).sum(), dropped.sum())  # linear in v: the same mask
    finally:
        active.remove()
    with pytest.raises((NotImplementedError, RuntimeError)):
        attend(q, k, v)


def test_packed_operators_of_torchs_flash_backend(dense):
    """What torch.nn.attention.varlen calls, behind the CPU's key."""
    namespace = torch.ops.aten
    q, k, v = draw((14, 4, 16), *[(20, 2, 16)] * 2)
    ends_q, ends_k = [0, 3, 3, 14], [0, 5, 11, 20]
    offsets = [torch.tensor(ends, dtype=torch.int32) for ends in (ends_q, ends_k)]
    call, sizes = (q, k, v, *offsets), (11, 9)
    window = {"window_size_left": 4, "window_size_right": 0}
    active = torch_backend.activate("CPU")
    try:
        for causal, bounds in ((False, {}), (True, {}), (False, window)):
            found = namespace._flash_attention_forward(*call, *sizes, 0.0, causal, False, **bounds)
            out, lse, state, unused = found[:4]
            grads = namespace._flash_attention_backward(
                torch.ones_like(out), q, k, v, out, lse, *offsets, *sizes, 0.0, causal, state,
                unused, **bounds,
            )  # fmt: skip
            leaves = [t.double().requires_grad_() for t in (q, k, v)]
            parts = []
            for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
                one = (leaves[0][None, a:b], leaves[1][None, c:d], leaves[2][None, c:d])
                seen = (4, 0) if bounds else (-1, -1)
                rows, stats = dense(*one, causal=causal, window=seen)
                parts.append(torch.where(stats.isfinite().mT[..., None], rows, 0.0)[0])
            wanted = torch.cat(parts)
            torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
            expected = torch.autograd.grad(wanted.sum(), leaves)
            for ours_grad, theirs in zip(grads, expected, strict=True):
                torch.testing.assert_close(
                    ours_grad.double(), theirs.nan_to_num(), rtol=1e-4, atol=1e-5
                )
    finally:
        active.remove()


def test_registration():
    torch_backend.register_flash_backend()
    assert "flashgen" in torch.nn.attention.list_flash_attention_impls()
