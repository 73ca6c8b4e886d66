"""The dropout mask by its written definition, in torch: the reference that kernels must equal.

Element (b, h, q, kv) is kept by a pure function of (seed, offset, b, h, q, kv): the same on every
target, tile shape and pass. Philox4x32 with 7 rounds gives 16 bytes to each lane of a block of
16 queries x 32 keys (8 bits an element) or 16 x 16 (16 bits), in the order in which a warp holds
an m16n8 accumulator.
"""

from __future__ import annotations

import torch

from ..generator.errors import ArgumentError

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # Salmon et al., SC11, "Parallel Random Numbers", Philox4x32
WEYL = (0x9E3779B9, 0xBB67AE85)  # same: golden ratio and sqrt(3) - 1, what the key grows by
BLOCK_Q = 16
MASK32 = 0xFFFFFFFF
_CHUNK_ELEMS = 1 << 24  # elements of the mask drawn at once: their int64 values take 128 MiB


def dropout_threshold(dropout_p: float, bits: int) -> int:
    """The integer t with which an element is dropped iff its random value is below t.

    Args:
        dropout_p: the probability of dropping an element, in [0, 1].
        bits: random bits of an element, 8 or 16.

    Raises:
        ArgumentError: when ``dropout_p`` is no probability, or would round to 0 or to 1.
    """
    if not 0.0 <= dropout_p <= 1.0:
        raise ArgumentError(f"dropout_p: expected a probability in [0, 1], got {dropout_p}.")
    levels = 1 << bits
    threshold = round(levels * dropout_p)
    if (threshold == 0 and dropout_p > 0.0) or (threshold == levels and dropout_p < 1.0):
        remedy = (
            "Use a variant with 16 bits (spec: `dropout: {bits: 16}`, key: ...-dropout16)"
            if bits == 8
            else "Use exactly 0 or 1"
        )
        raise ArgumentError(
            f"dropout_p: {dropout_p} rounds to {threshold // levels} at {bits} bits, whose "
            f"finest step is 1/{levels}. {remedy}, or a probability from {1 / levels:.2g} to "
            f"{1 - 1 / levels:.6g}."
        )
    return threshold


def dropout_scale(threshold: int, bits: int) -> float:
    """1 / (1 - realised probability), what kept elements grow by; 0 where all are dropped."""
    levels = 1 << bits
    return 0.0 if threshold >= levels else levels / (levels - threshold)


def philox4x32(
    counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor | int, ...], rounds: int = ROUNDS
) -> tuple[torch.Tensor, ...]:
    """Philox4x32 of broadcastable int64 tensors that hold unsigned 32-bit words.

    Products of two 32-bit words wrap in int64, which keeps all 64 bits; a shift and a mask read
    the high word.

    Args:
        counter: four words.
        key: two words.
        rounds: 7 for the dropout mask; 10 is what most libraries use.

    Returns:
        Four words, int64 in [0, 2^32).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for i in range(rounds):
        product0 = c0 * MULTIPLIERS[0]
        product1 = c2 * MULTIPLIERS[1]
        high0, low0 = (product0 >> 32) & MASK32, product0 & MASK32
        high1, low1 = (product1 >> 32) & MASK32, product1 & MASK32
        round_k0 = (k0 + i * WEYL[0]) & MASK32
        round_k1 = (k1 + i * WEYL[1]) & MASK32
        c0, c1, c2, c3 = high1 ^ c1 ^ round_k0, low1, high0 ^ c3 ^ round_k1, low0
    return c0, c1, c2, c3


def random_values(
    seed: int | torch.Tensor,
    offset: int | torch.Tensor,
    sequence_heads: torch.Tensor,
    seqlen_q: int,
    seqlen_k: int,
    bits: int = 8,
) -> torch.Tensor:
    """The random value of each element, int64 (len(sequence_heads), seqlen_q, seqlen_k).

    Args:
        seed: the Philox key: an int below 2^64 or a 0-dim int64 tensor.
        offset: tells calls that share a seed apart; offset div 4 mod 2^32 enters.
        sequence_heads: int64 (n,), b * num_heads + h of each matrix wanted.
        seqlen_q: queries of a sequence.
        seqlen_k: keys of a sequence.
        bits: random bits of an element, 8 or 16; the values lie below 2^bits.
    """
    device = sequence_heads.device
    seed, offset = _word64(seed, device), _word64(offset, device)
    block_k = 256 // bits  # keys of a block: its 32 lanes share 32 * 16 random bytes
    blocks_q, blocks_k = -(-seqlen_q // BLOCK_Q), -(-seqlen_k // block_k)
    count = len(sequence_heads)
    words = philox4x32(
        counter=(
            torch.arange(blocks_k, device=device),
            torch.arange(blocks_q * 32, device=device).view(1, -1, 1),  # q div 16 * 32 + lane
            sequence_heads.view(-1, 1, 1) & MASK32,
            (offset >> 2) & MASK32,
        ),
        key=(seed & MASK32, (seed >> 32) & MASK32),
    )
    # [count, blocks_q, q mod 8, kv mod 8 div 2, blocks_k, word]
    lanes = torch.stack(words, -1).view(count, blocks_q, 8, 4, blocks_k, 4)
    shifts = bits * torch.arange(32 // bits, device=device)
    parts = (lanes.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    # a lane's values are ordered by (kv mod block_k div 8, q mod 16 div 8, kv mod 2)
    parts = parts.view(count, blocks_q, 8, 4, blocks_k, block_k // 8, 2, 2)
    ordered = parts.permute(0, 1, 6, 2, 4, 5, 3, 7)
    values = ordered.reshape(count, blocks_q * BLOCK_Q, blocks_k * block_k)
    return values[:, :seqlen_q, :seqlen_k]


def keep_heads(
    seed: int | torch.Tensor,
    offset: int | torch.Tensor,
    sequence_heads: torch.Tensor,
    seqlen_q: int,
    seqlen_k: int,
    threshold: int,
    bits: int = 8,
) -> torch.Tensor:
    """Which elements survive dropout: bool (len(sequence_heads), seqlen_q, seqlen_k).

    Args:
        seed: as in ``keep_mask``; offset, threshold and bits too.
        offset: likewise.
        sequence_heads: int64 (n,), b * num_heads + h of each matrix wanted.
        seqlen_q: queries of a sequence.
        seqlen_k: keys of a sequence.
        threshold: an element is dropped iff its random value is below this.
        bits: random bits of an element, 8 or 16.
    """
    shape = (len(sequence_heads), seqlen_q, seqlen_k)
    keep = torch.ones(shape, dtype=torch.bool, device=sequence_heads.device)
    if keep.numel() == 0 or threshold == 0:
        return keep
    step = max(1, _CHUNK_ELEMS // (seqlen_q * seqlen_k))
    for begin in range(0, len(keep), step):
        indices = sequence_heads[begin : begin + step]
        values = random_values(seed, offset, indices, seqlen_q, seqlen_k, bits)
        torch.ge(values, threshold, out=keep[begin : begin + step])
    return keep


def keep_mask(
    seed: int | torch.Tensor,
    offset: int | torch.Tensor,
    batch: int,
    num_heads: int,
    seqlen_q: int,
    seqlen_k: int,
    threshold: int,
    bits: int = 8,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Which elements survive dropout: bool (batch, num_heads, seqlen_q, seqlen_k).

    Args:
        seed: the Philox key: an int below 2^64 or a 0-dim int64 tensor.
        offset: tells calls that share a seed apart; offset div 4 mod 2^32 enters.
        batch: number of sequences.
        num_heads: number of query heads.
        seqlen_q: queries of a sequence.
        seqlen_k: keys of a sequence.
        threshold: an element is dropped iff its random value is below this.
        bits: random bits of an element, 8 or 16.
        device: where the mask lies.
    """
    heads = torch.arange(batch * num_heads, device=device)
    keep = keep_heads(seed, offset, heads, seqlen_q, seqlen_k, threshold, bits)
    return keep.view(batch, num_heads, seqlen_q, seqlen_k)


def _word64(value: int | torch.Tensor, device: torch.device) -> torch.Tensor:
    """``value`` as a 0-dim int64 tensor that holds the same 64 bits."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return torch.tensor(wrap_int64(value), device=device)


def wrap_int64(value: int) -> int:
    """The int64 with the bits of ``value`` mod 2^64."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
