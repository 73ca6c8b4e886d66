"""The fp64 reference of each catalogue variant is dense attention by its paper's formula."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from catalogue_cases import CASES, call_of
from catalogue_formulas import FORMULAS, attend

from flashgen.runtime import reference
from flashgen.runtime.catalogue import Catalogue

RELATIVE = 1e-11  # both are fp64, and sums of a few thousand terms


@functools.cache
def shipped():
    return {spec.name: spec for spec in Catalogue.load().specs}


def variant_of(name):
    """The spec's one variant, with a small head: no formula depends on its size."""
    (variant,) = shipped()[name].variants
    return replace(variant, head_dim=8, head_dim_v=16)


def has_features(variant):
    """Whether more than a plain causal mask and dropout is in it: what a formula is for."""
    presets = (variant.window, variant.softcap, variant.alibi, variant.sink, variant.block_mask)
    special = variant.body, variant.layout == "varlen", variant.causal == "top_left"
    return any(presets) or any(special)


def test_every_spec_of_the_language_has_a_formula_and_a_case():
    featured = {name for name, spec in shipped().items() if any(map(has_features, spec.variants))}
    assert featured == set(FORMULAS) == set(CASES)
    assert len(featured) >= 30


def leaves_of(call):
    """q, k, v and each float tensor of the arguments, as fp64 leaves."""
    named = {"q": call.q, "k": call.k, "v": call.v, **call.arguments}
    return {
        name: tensor.detach().double().requires_grad_()
        for name, tensor in named.items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }


def by_formula(formula, call, scale):
    """(out, lse, leaves) by hand; a packed call is one dense call for each sequence."""
    leaves = leaves_of(call)
    q, k, v = leaves["q"], leaves["k"], leaves["v"]
    tensors = {n: t for n, t in call.arguments.items() if isinstance(t, torch.Tensor)} | leaves
    numbers = {n: x for n, x in call.arguments.items() if not isinstance(x, torch.Tensor)}
    if "cu_seqlens_q" not in tensors:
        out, lse = attend(formula, q, k, v, tensors, numbers, scale)
        return out, lse, leaves
    ends_q, ends_k = (tensors[f"cu_seqlens_{side}"].tolist() for side in "qk")
    outs, lses = [], []
    for i in range(len(ends_q) - 1):
        rows, columns = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        if rows.stop == rows.start:
            continue
        parts = q[None, rows], k[None, columns], v[None, columns]
        out, lse = attend(formula, *parts, tensors, numbers, scale)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs, 0), torch.cat(lses, 1), leaves


@pytest.mark.parametrize("name", sorted(CASES))
def test_reference_is_the_formula(name):
    """out, lse and the gradients of q, k, v, the sink and every capture that has one."""
    variant = variant_of(name)
    call = call_of(CASES[name], variant, torch.float64)
    scale = CASES[name].softmax_scale
    out, lse, leaves = by_formula(FORMULAS[name], call, scale)
    problem = reference.Problem.of(
        variant, call.q, call.k, call.v, call.arguments, softmax_scale=scale
    )
    ref = reference.evaluate(problem, call.dout, call.dlse, dtype=torch.float64)
    close(ref.out, out, "out")
    close(ref.lse, lse, "lse")

    finite = lse.isfinite()  # the lse of a row without keys is no function of anything
    wanted = {n: leaf for n, leaf in leaves.items() if f"d{n}" in ref.gradients}
    found = torch.autograd.grad(
        (out, lse[finite]), list(wanted.values()), (call.dout, call.dlse.double()[finite])
    )
    assert {f"d{n}" for n in wanted} == set(ref.gradients)
    for n, grad in zip(wanted, found, strict=True):
        close(ref.gradients[f"d{n}"], grad, f"gradient of {n}")


def close(ours, formula, what):
    infinite = ~formula.isfinite()
    assert torch.equal(ours.double()[infinite], formula[infinite]), what
    difference = (ours.double() - formula).masked_fill(infinite, 0.0).abs().max().item()
    scale = formula.masked_fill(infinite, 0.0).abs().max().item()
    # captures that are given in fp32 have gradients rounded to it
    relative = RELATIVE if ours.dtype == torch.float64 else 1e-6
    assert difference <= relative * max(1.0, scale), f"{what}: {difference}"


def plain(x):
    return x.s, True


def causal(x):
    return x.s, x.j <= x.p


@pytest.mark.parametrize("name", sorted(set(CASES) - {"packed", "gemma2-global"}))
def test_cases_make_a_formula_bite(name):
    """A case in which a mask hides nothing or a score stays as it is would test nothing."""
    variant = variant_of(name)
    call = call_of(CASES[name], variant, torch.float64)
    scale = CASES[name].softmax_scale
    out, _, _ = by_formula(FORMULAS[name], call, scale)
    kept = {n: a for n, a in call.arguments.items() if n.startswith("cu_seqlens")}
    bare = replace(call, arguments=kept)  # without the sink too
    without, _, _ = by_formula(causal if variant.causal is True else plain, bare, scale)
    assert (out - without).abs().max() > 1e-3
