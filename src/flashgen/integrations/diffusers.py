"""diffusers' attention dispatch -> flashgen's kernels, by the backend name "fgen".

from flashgen.integrations import diffusers as fgen
fgen.register()
pipeline.transformer.set_attention_backend("fgen")
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch

from ..generator.errors import ArgumentError, FlashgenError
from ..runtime.sdpa import scaled_dot_product_attention

NAME = "fgen"
_WHERE = "diffusers"


def register() -> None:
    """Make "fgen" a backend of diffusers, for ``set_attention_backend`` and ``attention_backend``.

    diffusers has a registry of backends but no public way to add one: their names are an Enum,
    which gets a member here. Any number of calls is one.

    Raises:
        FlashgenError: when diffusers isn't there, or has no such registry (before 0.36).
    """
    try:
        from diffusers.models import attention_dispatch as dispatch

        names, registry = dispatch.AttentionBackendName, dispatch._AttentionBackendRegistry
        add = registry.register
    except (ImportError, AttributeError) as error:
        raise FlashgenError(
            f"{_WHERE}: expected release 0.36 or newer, with a registry of attention backends, "
            f"got: {error}. Install it by `pip install 'flashgen[diffusers]'`."
        ) from error
    if NAME not in {member.value for member in names}:
        member = _new_member(names, NAME.upper(), NAME)
        add(member, constraints=[])(attention_forward)


def attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> torch.Tensor:
    """Attention as diffusers calls its backends; they find arguments by these names.

    Args:
        query: (batch, seqlen_q, num_heads, head_dim), any strides.
        key: (batch, seqlen_k, num_heads_kv, head_dim).
        value: (batch, seqlen_k, num_heads_kv, head_dim_v).
        attn_mask: (batch, seqlen_k), or broadcastable to (batch, num_heads, seqlen_q, seqlen_k);
            bool, true where a key is seen, or a float that is added to the scores.
        dropout_p: probability of dropping an element.
        is_causal: query i sees keys up to i.
        scale: of the scores; default 1 / sqrt(head_dim).
        enable_gqa: num_heads_kv may be a divisor of num_heads.
        return_lse: must be false.
        _parallel_config: must be None.

    Returns:
        (batch, seqlen_q, num_heads, head_dim_v), differentiable.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    if return_lse or _parallel_config is not None:
        name, got = ("return_lse", "True") if return_lse else ("parallel_config", "a configuration")
        raise ArgumentError(
            f"{_WHERE}: {name}: expected none, got {got}. Context parallelism needs a backend of "
            "diffusers' own: model.set_attention_backend('native')."
        )
    mask = attn_mask
    if mask is not None and mask.shape == (query.shape[0], key.shape[1]):
        mask = mask[:, None, None]  # padding, as diffusers' native backend reads it
    out = scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    return out.transpose(1, 2)


def _new_member(names: Any, name: str, value: str) -> Enum:
    """A member that ``names``, an Enum of strings, gets after it was defined."""
    member: Any = str.__new__(names, value)
    member._name_, member._value_ = name, value
    member._sort_order_ = len(names)
    setattr(names, name, member)  # before it is known as a member, which can't be set
    names._member_map_[name] = names._value2member_map_[value] = member
    names._member_names_.append(name)
    assert names(value) is member
    found: Enum = member
    return found
