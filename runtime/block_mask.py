"""A variant's mask -> the boolean map of blocks that it leaves anything of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..generator.body import Body
from ..generator.errors import ArgumentError
from ..generator.ir import Load, Name, walk
from ..generator.program import program_for
from ..generator.variant import Variant
from .captures import signature_of
from .evaluate import Scope, evaluate

DEFAULT_BLOCK = (128, 128)
_CHUNK_ELEMS = 1 << 22  # elements of the mask held at once: 32 MiB for each int64 that it needs


def block_mask(
    variant: Variant,
    sizes: tuple[int, int, int, int, int],
    block: tuple[int, int] | None,
    device: torch.device | str | None,
    arguments: Mapping[str, Any],
) -> torch.Tensor:
    """Whether each block has an element that the mask lets through; O(blocks) memory.

    The block mask of the variant itself counts as full.

    Args:
        variant: whose mask.
        sizes: (batch, num_heads, num_heads_kv, seqlen_q, seqlen_k).
        block: (queries, keys) of a block; default the variant's, else (128, 128).
        device: default, that of a captured tensor, else the CPU.
        arguments: captures and run-time params by name.

    Returns:
        bool (batch, num_heads, ceil(seqlen_q / block[0]), ceil(seqlen_k / block[1])).

    Raises:
        ArgumentError: when the variant is packed or has no mask, or an argument is wrong.
    """
    alone = _mask_alone(variant)
    mask = program_for(alone).mask
    if variant.layout == "varlen" or mask is None:
        found = "packed sequences" if variant.layout == "varlen" else "no mask"
        raise ArgumentError(
            f"{variant.key}: block_mask: expected a dense variant with a mask, got {found}. "
            "Build the map by hand."
        )
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    if device is None:
        device = tensors[0].device if tensors else "cpu"
    batch, num_heads, num_heads_kv, seqlen_q, seqlen_k = sizes
    signature, whole = signature_of(alone), signature_of(variant)
    spare = {*whole.tensors, *whole.params}.difference(signature.tensors, signature.params)
    arguments = {name: value for name, value in arguments.items() if name not in spare}
    q = torch.empty((batch, seqlen_q, num_heads, 0), device=device)
    k = torch.empty((batch, seqlen_k, num_heads_kv, 0), device=device)
    captures, params = signature.named(signature.bind(q, k, arguments))
    rows, columns = block or variant.block_mask or DEFAULT_BLOCK
    blocks = -(-seqlen_q // rows), -(-seqlen_k // columns)
    result = torch.empty((batch, num_heads, *blocks), dtype=torch.bool, device=device)
    wide = max(1, min(blocks[1], _CHUNK_ELEMS // (rows * columns)))
    for b in range(batch):
        for h in range(num_heads):
            for i in range(blocks[0]):
                queries = range(i * rows, min(seqlen_q, (i + 1) * rows))
                for j in range(0, blocks[1], wide):
                    keys = range(j * columns, min(seqlen_k, (j + wide) * columns))
                    scope = Scope.of_block(
                        range(b, b + 1), range(h, h + 1), queries, keys,
                        sizes=(seqlen_q, seqlen_k, num_heads, num_heads_kv),
                        captures=captures, params=params, device=device,
                    )  # fmt: skip
                    visible = evaluate(mask, scope).expand(1, 1, len(queries), len(keys))
                    result[b, h, i, j : j + wide] = _any_in_columns(visible[0, 0], columns)
    return result


def _mask_alone(variant: Variant) -> Variant:
    """The variant of the same mask that has nothing else, so that no more is asked for."""
    body = variant.body
    if body is not None:
        nodes = [] if body.mask is None else list(walk(body.mask))
        loads = {node.capture for node in nodes if isinstance(node, Load)}
        names = {node.id for node in nodes if isinstance(node, Name)}
        body = Body(
            tuple(capture for capture in body.captures if capture.name in loads),
            tuple(param for param in body.params if param.name in names),
            body.mask,
        )
    return replace(variant, block_mask=None, sink="", alibi=False, softcap=None, body=body)


def _any_in_columns(visible: torch.Tensor, columns: int) -> torch.Tensor:
    """Whether each run of ``columns`` columns has a True, the last one being shorter."""
    some = visible.any(0)
    missing = -len(some) % columns
    return torch.nn.functional.pad(some, (0, missing)).view(-1, columns).any(1)
