"""What a call has -> the variant that it needs, its kernel built on first use.

A choice says which arguments are there, never what they are: the number of variants that a model
needs is that of its kinds of layers and batches, whatever its lengths, windows and caps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from ..generator.body import CaptureDtype
from ..generator.variant import PASSES, Variant, Window
from ..runtime.captures import Signature, signature_of
from ..runtime.kernel import Kernel
from ..runtime.model_bodies import BodyKind, body_of


@dataclass(frozen=True, slots=True)
class Choice:
    """Which variant a call needs.

    Attributes:
        head_dim: of q and k, padded to what kernels are made for.
        head_dim_v: of v, likewise.
        dtype: of q, k and v.
        causal: without a window: bottom-right aligned.
        window: both sides are arguments; causal is then a right side of 0.
        varlen: packed by cu_seqlens.
        softcap: there is one, an argument.
        sink: as the variant's.
        mask: "", or the name of the mask in bodies.yaml.
        bias: "", or the name of the score in bodies.yaml.
        bias_dtype: of the bias; fp32 without one.
        bias_grad: whether it needs its gradient.
        bias_hides: whether it is a mask of floats; then there is no other mask.
        dropout_bits: as the variant's.
        deterministic: as the variant's.
    """

    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool = False
    window: bool = False
    varlen: bool = False
    softcap: bool = False
    sink: str = ""
    mask: str = ""
    bias: str = ""
    bias_dtype: CaptureDtype = "fp32"
    bias_grad: bool = False
    bias_hides: bool = False
    dropout_bits: int = 0
    deterministic: bool = False


def presets_of(choice: Choice) -> Variant:
    """The attention function of ``choice`` but for its mask and bias."""
    return Variant(
        choice.head_dim,
        choice.head_dim_v,
        choice.dtype,
        causal=choice.causal and not choice.window,
        dropout_bits=choice.dropout_bits,
        deterministic=choice.deterministic,
        layout="varlen" if choice.varlen else "dense",
        window=Window(runtime=True) if choice.window else None,
        softcap="runtime" if choice.softcap else None,
        sink=choice.sink,  # type: ignore[arg-type]
    )


@cache
def variant_of(choice: Choice) -> Variant:
    """The attention function of ``choice``."""
    kind = BodyKind(
        choice.mask, choice.bias, choice.bias_dtype, choice.bias_grad, choice.bias_hides
    )
    return replace(presets_of(choice), body=body_of(kind))


def mark_of(choice: Choice) -> str:
    """What the key of ``choice``'s variant has behind that of its presets; made for traces."""
    from ..runtime.constants import constant_model_mark

    return constant_model_mark(
        choice.mask, choice.bias, choice.bias_dtype, choice.bias_grad, choice.bias_hides
    )


def find_signature(choice: Choice) -> Signature:
    """How calls of the variant of ``choice`` are made."""
    return signature_of(variant_of(choice))


@cache
def find_kernel(choice: Choice, device: str, with_backward: bool) -> Kernel:
    """The kernel of ``choice``, built and loaded for ``device``.

    A model that only runs forward never waits for a backward pass to be built.
    """
    passes = PASSES if with_backward else PASSES[:1]
    return Kernel(variant_of(choice), torch.device(device), passes=passes)
