"""Padded batches <-> packed sequences: the functions of flash_attn.bert_padding."""

from __future__ import annotations

import torch
from torch.nn.functional import pad


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """``input[indices]``: rows of (rows, ...) at the places ``indices`` (n,), differentiable."""
    return input.index_select(0, indices)


def index_put_first_axis(
    values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int
) -> torch.Tensor:
    """(first_axis_dim, ...) of zeros with row ``indices[i]`` of ``values[i]``, differentiable."""
    shape = (first_axis_dim, *values.shape[1:])
    return values.new_zeros(shape).index_copy(0, indices, values)


def index_first_axis_residual(
    input: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(``input[indices]``, ``input`` for the residual branch)."""
    return index_first_axis(input, indices), input


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The tokens that masks name, packed.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask: (batch, seqlen), bool or int: which tokens are valid.
        unused_mask: (batch, seqlen): tokens to keep though they aren't valid.

    Returns:
        (tokens (total, ...), indices (total,) into the flattened batch, cu_seqlens int32 (batch +
        1), the longest length, seqused int32 (batch,): valid tokens of each sequence). The longest
        length is an int, for which the host waits for the device.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices),
        indices,
        _offsets(lengths),
        int(lengths.max()),
        used,
    )


def unpad_input_for_concatenated_sequences(
    hidden_states: torch.Tensor, attention_mask_in_length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """The tokens of rows that hold several sequences each, packed.

    Args:
        hidden_states: (batch, seqlen, ...).
        attention_mask_in_length: int (batch, seqlen): the lengths of each row's sequences, then
            zeros.

    Returns:
        (tokens (total, ...), indices (total,), cu_seqlens int32 (sequences + 1), the longest
        length).
    """
    length = attention_mask_in_length.sum(-1)
    places = torch.arange(hidden_states.shape[1], device=length.device)
    indices = (places < length.unsqueeze(1)).flatten().nonzero().flatten()
    lengths = attention_mask_in_length[attention_mask_in_length > 0].to(torch.int32)
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, _offsets(lengths), int(lengths.max())


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """(batch, seqlen, ...) with the packed tokens (total, ...) at ``indices``, 0 elsewhere."""
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return torch.unflatten(rows, 0, (batch, seqlen))


def _offsets(lengths: torch.Tensor) -> torch.Tensor:
    return pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
