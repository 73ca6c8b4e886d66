"""transformers' attention and mask interfaces -> flashgen's kernels, by the name "fgen".

from flashgen.integrations import transformers as fgen
fgen.register()
model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fgen")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..generator.errors import FlashgenError
from .call import Arguments, attend
from .lazy_mask import LazyMask, MaskParts, parts_of

NAME = "fgen"  # transformers takes a name with "flash" in it for its own implementations


def register(name: str = NAME) -> None:
    """Make ``attn_implementation=name`` run attention by flashgen, in every model.

    Any number of calls is one. Models whose attention doesn't go through transformers'
    AttentionInterface (in 4.57 BERT and T5 among others) say that they can't use it.

    Args:
        name: to register under; not with "flash", "sdpa", "flex_attention" or "/" in it, which
            transformers takes for something else.

    Raises:
        FlashgenError: when transformers isn't there, is older than 4.57, or ``name`` can't be.
    """
    if any(word in name for word in ("flash", "sdpa", "flex_attention", "eager", "/", ":")):
        raise FlashgenError(
            f"transformers: name: expected one that transformers leaves alone, got {name!r}. "
            f"Use {NAME!r}."
        )
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise FlashgenError(
            f"transformers: expected release 4.57 or newer, got: {error}. Install it by "
            "`pip install transformers`."
        ) from error
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, _mask_maker(sdpa_mask))


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention of one layer, as transformers calls it.

    Args:
        module: the layer; its ``is_causal`` counts where the argument is None.
        query: (batch, num_heads, queries, head_dim).
        key: (batch, num_heads_kv, keys, head_dim).
        value: (batch, num_heads_kv, keys, head_dim_v).
        attention_mask: of the mask interface; or a tensor (batch or 1, num_heads or 1, queries or
            1, keys), bool (True is seen) or float (added to the scores).
        dropout: probability of dropping an element.
        scaling: of the scores; default 1 / sqrt(head_dim).
        is_causal: without a mask: query i sees keys up to i.
        sliding_window: without a mask: a query sees the last so many keys.
        softcap: of the scores.
        s_aux: (num_heads), a logit of each head in the softmax's denominator; differentiable.
        position_bias: (batch or 1, num_heads or 1, queries, keys), added to the scores;
            differentiable.
        kwargs: what else models pass. ``cu_seq_lens_q`` and ``cu_seq_lens_k`` of a batch of one
            row say where its sequences begin.

    Returns:
        (batch, queries, num_heads, head_dim_v), contiguous, and None: weights are never stored.

    Raises:
        ArgumentError: says which argument is wrong and what was expected.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    cu_seqlens = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if None in cu_seqlens or query.shape[0] != 1 or position_bias is not None:
        cu_seqlens = None, None
    mask: torch.Tensor | MaskParts | None = attention_mask
    keys = key.shape[2]
    if isinstance(attention_mask, LazyMask):
        mask, keys = attention_mask.parts, attention_mask.shape[-1]
        if not _aligned(mask, query.shape[2], keys):
            mask = attention_mask.dense()
    elif attention_mask is None:
        causal = bool(is_causal) and query.shape[2] > 1
        mask = MaskParts(
            left=None if sliding_window is None else sliding_window - 1,
            right=0 if causal else None,
            shift=0 if causal else key.shape[2] - query.shape[2],
        )
    out = attend(
        Arguments(
            query.transpose(1, 2),
            key[:, :, :keys].transpose(1, 2),
            value[:, :, :keys].transpose(1, 2),
            mask,
            dropout_p=dropout,
            softmax_scale=scaling,
            softcap=softcap,
            sink=s_aux,
            bias=position_bias,
            cu_seqlens_q=cu_seqlens[0],
            cu_seqlens_k=cu_seqlens[1],
        )
    )
    return out, None


def _aligned(parts: MaskParts, queries: int, keys: int) -> bool:
    """Whether dropping keys at the end makes the last query's place the last key's."""
    if parts.left is None and parts.right is None:
        return True
    if parts.right == 0:
        return 0 < queries + parts.shift <= keys
    return queries + parts.shift == keys


def _mask_maker(sdpa_mask: Callable[..., torch.Tensor | None]) -> Callable[..., Any]:
    """The mask function of the interface; ``sdpa_mask`` evaluates what isn't lazy."""

    def make_mask(
        batch_size: int,
        kv_length: int,
        kv_offset: Any = 0,
        *,
        mask_function: Callable[..., Any],
        attention_mask: torch.Tensor | None = None,
        **more: Any,
    ) -> torch.Tensor | None:
        given = dict(
            batch_size=batch_size,
            kv_length=kv_length,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **(more | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}),
        )
        positions = more.get("cache_position")  # 4.57 passes the queries' places
        queries = more["q_length"] if positions is None else len(positions)
        if torch.compiler.is_compiling():
            if attention_mask is None and queries == kv_length and _is_causal_alone(more):
                return None
            return sdpa_mask(**given)
        parts = parts_of(mask_function)
        offset = more.get("q_offset", 0) if positions is None else positions[:1]
        decoding = queries == 1 and isinstance(offset, torch.Tensor)
        if parts is None or decoding or isinstance(kv_offset, torch.Tensor):
            # one row of a mask is as small as its padding, and needs no offset to be read back
            return sdpa_mask(**given)
        shift = 0
        if kv_length != queries or kv_offset != 0:  # else every key is a query's
            shift = int(offset) - kv_offset
        keep = _padding(attention_mask, kv_length, kv_offset)
        parts = MaskParts(parts.left, parts.right, parts.documents, keep, shift)
        device = torch.device(more.get("device") or _device_of(positions, keep))
        shape = (batch_size, 1, queries, kv_length)
        return LazyMask(shape, device, parts)

    return make_mask


def _is_causal_alone(more: dict[str, Any]) -> bool:
    """Whether transformers says that ``is_causal`` has the meaning of the mask.

    It says so of causal order in whole sequences: not of packed ones, nor of a bidirectional mask.
    """
    return bool(more.get("allow_is_causal_skip", False)) and more.get("local_size") is None


def _device_of(*tensors: torch.Tensor | None) -> torch.device:
    return next((t.device for t in tensors if t is not None), torch.device("cpu"))


def _padding(mask: torch.Tensor | None, kv_length: int, kv_offset: int) -> torch.Tensor | None:
    """Whether each of the keys is a token: (batch, kv_length), or None where all are."""
    if mask is None:
        return None
    missing = kv_offset + kv_length - mask.shape[-1]
    if missing > 0:  # places of a static cache that are still empty
        mask = torch.nn.functional.pad(mask, (0, missing))
    return mask[:, kv_offset : kv_offset + kv_length].bool()
