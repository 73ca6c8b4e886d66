from __future__ import annotations

import copy
import sys

import pytest
import torch

pytest.importorskip("transformers", minversion="4.57")

from transformers import masking_utils
from transformers_models import GENERATIVE, MODELS, Batch, batch, make, register_exact, run

from flashgen.generator.errors import ArgumentError, FlashgenError
from flashgen.integrations import choice as choice_module
from flashgen.integrations import transformers as fgen
from flashgen.integrations.lazy_mask import LazyMask, parts_of
from flashgen.runtime import ops
from flashgen.runtime.error_rule import compare

EPS = torch.finfo(torch.float32).eps
_ALL = ("none", "left", "right", "packed")
PADDINGS = {  # packed: of the models that read documents from position_ids
    "gpt2": _ALL,
    "bert": _ALL[:3],
    "llama": _ALL,
    "vit": _ALL[:1],
    "mistral": _ALL,
    "gemma2": _ALL,
    "t5": _ALL[:3],
    "gpt_oss": _ALL[:3],  # it gives its positions to no mask
}
CASES = [(name, padding) for name in MODELS for padding in PADDINGS[name]]


@pytest.fixture(scope="module", autouse=True)
def registered(kernels):
    fgen.register()
    register_exact()


@pytest.fixture
def no_dense_mask(monkeypatch):
    """A lazy mask that is asked for its elements is an error."""

    def refuse(mask):
        raise AssertionError(f"{mask!r} was made dense")

    monkeypatch.setattr(LazyMask, "dense", refuse)


def check_same(model, ours, data):
    """``ours`` is as near to fp64 as eager attention is, by the error rule."""
    eager = run(model, "eager", data)
    exact = run(copy.deepcopy(model).double(), "exact", data)
    largest = max(grad.abs().max().item() for grad in exact.gradients.values())
    verdict = compare(ours.out, exact.out, eager.out, 4 * EPS * exact.out.abs().max().item())
    assert verdict.ok, f"logits: {verdict}"
    assert ours.gradients.keys() == exact.gradients.keys()
    for name, grad in ours.gradients.items():
        # a key's bias has no gradient but rounding, of the size of its neighbours'
        verdict = compare(grad, exact.gradients[name], eager.gradients[name], 4 * EPS * largest)
        assert verdict.ok, f"{name}: {verdict}"


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_matches_eager(name, padding, no_dense_mask):
    model, data = make(name), batch(name, padding)
    ours = run(model, "fgen", data)
    if name == "gpt_oss":  # its experts have no fp64
        eager = run(model, "eager", data)
        torch.testing.assert_close(ours.out, eager.out, rtol=1e-5, atol=1e-5)
        assert ours.gradients.keys() == eager.gradients.keys()
        for parameter, grad in ours.gradients.items():
            torch.testing.assert_close(grad, eager.gradients[parameter], rtol=1e-4, atol=1e-7)
    else:
        check_same(model, ours, data)


@pytest.mark.parametrize("name", [name for name in MODELS if "packed" in PADDINGS[name]])
def test_packed_documents_do_not_see_each_other(name):
    model, data = make(name).eval(), batch(name, "packed")  # its second document starts at 8
    model.set_attn_implementation("fgen")
    other = data.inputs["input_ids"].clone()
    other[:, 0] += 1 - 2 * (other[:, 0] > 50)
    with torch.no_grad():
        one = model(**data.inputs).logits
        two = model(**data.inputs | {"input_ids": other}).logits
    assert torch.equal(one[:, 8:], two[:, 8:])
    assert not torch.equal(one[:, 7], two[:, 7])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", GENERATIVE)
def test_generates_as_eager(name, cache):
    model = make(name).eval()
    inputs = batch(name, "left", tokens=12).inputs
    inputs.pop("decoder_input_ids", None)
    found = []
    for implementation in ("eager", "fgen"):
        model.set_attn_implementation(implementation)
        found.append(
            model.generate(
                **inputs, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None,
                output_scores=True, return_dict_in_generate=True, cache_implementation=cache,
            )
        )  # fmt: skip
    assert torch.equal(found[0].sequences, found[1].sequences)
    for eager, ours in zip(found[0].scores, found[1].scores, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in ("gemma2", "t5") if name in MODELS])
def test_gradient_checkpointing(name):
    model, data = make(name), batch(name)
    data.inputs["use_cache"] = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ours = run(model, "fgen", data)
    model.gradient_checkpointing_disable()
    check_same(model, ours, data)


def test_dropout_is_repeated_by_checkpointing():
    model, data = make("gpt2", attn_pdrop=0.2).train(), batch("gpt2")
    data.inputs["use_cache"] = False
    torch.manual_seed(4)
    plain = run(model, "fgen", data)
    torch.manual_seed(4)
    again = run(model, "fgen", data)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    torch.manual_seed(4)
    checkpointed = run(model, "fgen", data)
    assert torch.equal(plain.out, again.out) and torch.equal(plain.out, checkpointed.out)
    for name, grad in plain.gradients.items():
        torch.testing.assert_close(checkpointed.gradients[name], grad, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(run(model.eval(), "fgen", data).out, plain.out, atol=1e-4)


def test_other_shapes_and_values_build_nothing():
    """Another length, batch, window, cap or scale is the same kernel."""
    run(make("gemma2"), "fgen", batch("gemma2", "left"))
    before = choice_module.find_kernel.cache_info().misses
    other = make("gemma2", sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=7)
    data = batch("gemma2", "left", tokens=40)
    check_same(other, run(other, "fgen", data), data)
    assert choice_module.find_kernel.cache_info().misses == before


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_of_ones_own(kind):
    model, data = make("llama"), batch("llama")
    seen = torch.rand(2, 1, 21, 21, generator=torch.Generator().manual_seed(3)) < 0.5
    seen |= torch.eye(21, dtype=torch.bool)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    theirs = Batch(data.inputs | {"attention_mask": added}, data.real)
    ours = run(model, "fgen", Batch({**data.inputs, "attention_mask": seen}, data.real)
               if kind == "bool" else theirs)  # fmt: skip
    eager = run(model, "eager", theirs)
    torch.testing.assert_close(ours.out, eager.out, rtol=1e-5, atol=1e-5)
    for name, grad in ours.gradients.items():
        torch.testing.assert_close(grad, eager.gradients[name], rtol=1e-4, atol=1e-6)


def test_sequences_by_cu_seqlens():
    """Packed as for varlen functions: each sequence is what it is alone."""
    model, data = make("llama").eval(), batch("llama")
    model.set_attn_implementation("fgen")
    row = data.inputs["input_ids"][:1]
    starts = torch.tensor([0, 8, 21], dtype=torch.int32)
    places = torch.cat([torch.arange(8), torch.arange(13)])[None]
    packing = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    packing |= {"max_length_q": 13, "max_length_k": 13}
    with torch.no_grad():
        packed = model(row, position_ids=places, use_cache=False, **packing).logits
        alone = [model(part, use_cache=False).logits for part in (row[:, :8], row[:, 8:])]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-5, atol=1e-5)
    assert any("varlen" in handle for handle in ops._runners), "no packed kernel ran"


def test_autocast():
    """Rotary embeddings promote q and k: attention runs in autocast's dtype all the same."""
    model, data = make("llama").eval(), batch("llama")
    found = []
    for implementation in ("eager", "fgen"):
        model.set_attn_implementation(implementation)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found.append(model(**data.inputs).logits)
    assert found[0].dtype == found[1].dtype
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)


def lazy_mask(**changes):
    make_mask = fgen._mask_maker(masking_utils.sdpa_mask)
    shape = {"q_length": 5, "q_offset": 2, "kv_length": 7}
    if "cache_position" in masking_utils.sdpa_mask.__code__.co_varnames:
        shape = {"cache_position": torch.arange(2, 7), "kv_length": 7}
    function = masking_utils.sliding_window_causal_mask_function(3)
    return make_mask(batch_size=2, **({"mask_function": function} | shape | changes))


def test_a_lazy_mask_is_a_mask_to_others():
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[1, :2] = False
    mask = lazy_mask(attention_mask=padding)
    assert isinstance(mask, LazyMask) and isinstance(mask.detach(), LazyMask)
    assert mask.shape == (2, 1, 5, 7) and mask.dtype is torch.bool
    queries, keys = torch.arange(2, 7)[:, None], torch.arange(7)
    expected = (keys <= queries) & (keys > queries - 3) & padding[:, None, None]
    assert torch.equal(mask & torch.ones(()).bool(), expected)
    assert torch.equal(~mask.detach(), ~expected)


def test_masks_of_other_kinds_are_dense():
    def odd(batch_idx, head_idx, q_idx, kv_idx):
        return (kv_idx + q_idx) % 2 == 0

    both = masking_utils.and_masks(masking_utils.causal_mask_function, odd)
    assert parts_of(odd) is None and parts_of(both) is None
    mask = lazy_mask(mask_function=both)
    assert not isinstance(mask, LazyMask) and mask.shape[-2:] == (5, 7)


def test_parts_apply_together():
    chain = masking_utils.and_masks(
        masking_utils.sliding_window_causal_mask_function(9),
        masking_utils.sliding_window_overlay(4),
        masking_utils.packed_sequence_mask_function(torch.tensor([[0, 0, 1]])),
    )
    parts = parts_of(chain)
    assert (parts.left, parts.right) == (3, 0)
    assert parts.documents.tolist() == [[0, 0, 1]] and parts.keep is None
    assert parts_of(masking_utils.causal_mask_function).right == 0


@pytest.mark.parametrize("name", ["flashgen", "my_sdpa", "hub/kernel"])
def test_names_that_transformers_takes(name):
    with pytest.raises(FlashgenError, match="Use 'fgen'"):
        fgen.register(name)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(FlashgenError, match="pip install transformers"):
        fgen.register()


def test_heads_too_large():
    q = torch.zeros(1, 2, 4, 512)
    with pytest.raises(ArgumentError, match="head_dim from 1 to 256"):
        fgen.attention_forward(torch.nn.Module(), q, q, q, None)
