from __future__ import annotations

import math

import pytest
import torch

from flashgen.generator.errors import ArgumentError
from flashgen.runtime import philox

M32 = 0xFFFFFFFF
# Vectors of the Random123 distribution: (rounds, counter, key, result).
KNOWN = [
    (7, (0, 0, 0, 0), (0, 0), "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (10, (0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (7, (M32,) * 4, (M32,) * 2, "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (10, (M32,) * 4, (M32,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        7,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "4dfccaba 190a87f0 c47362ba b6b5242a",
    ),
    (
        10,
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def scalar_philox(counter, key, rounds):
    c, k = list(counter), list(key)
    for _ in range(rounds):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & M32, (a >> 32) ^ c[3] ^ k[1], a & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def scalar_value(seed, offset, b, num_heads, h, q, kv, bits):
    """One element by the text of the definition, in plain ints."""
    lane = (q % 8) * 4 + (kv % 8) // 2
    width = 32 if bits == 8 else 16
    counter = (kv // width, (q // 16) * 32 + lane, b * num_heads + h, (offset // 4) % 2**32)
    words = scalar_philox(counter, (seed % 2**32, seed >> 32), 7)
    data = b"".join(word.to_bytes(4, "little") for word in words)
    index = ((kv % width) // 8) * 4 + ((q % 16) // 8) * 2 + kv % 2
    return data[index] if bits == 8 else data[2 * index] + 256 * data[2 * index + 1]


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN)
def test_known_vectors(rounds, counter, key, expected):
    words = [int(word, 16) for word in expected.split()]
    assert scalar_philox(counter, key, rounds) == words
    tensors = tuple(torch.tensor(word) for word in counter)
    assert [int(w) for w in philox.philox4x32(tensors, key, rounds)] == words


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("seed", "offset"),
    [(0, 0), (7, 4), (2**64 - 1, 2**34 + 9), (0x0123456789ABCDEF, 2**63 - 1), (2**63, 3)],
)
def test_mask_equals_the_written_definition(bits, seed, offset):
    batch, num_heads, seqlen_q, seqlen_k = 2, 3, 35, 70
    threshold = 100 if bits == 8 else 20_000
    mask = philox.keep_mask(
        seed, offset, batch, num_heads, seqlen_q, seqlen_k, threshold, bits
    ).tolist()
    for b, h in [(0, 0), (1, 2)]:
        for q in range(seqlen_q):
            for kv in range(seqlen_k):
                value = scalar_value(seed, offset, b, num_heads, h, q, kv, bits)
                assert mask[b][h][q][kv] == (value >= threshold), (b, h, q, kv)


def test_seed_and_offset_may_be_tensors():
    expected = philox.keep_mask(2**64 - 5, 40, 1, 2, 33, 65, 128)
    seed, offset = torch.tensor(-5), torch.tensor(40)
    assert torch.equal(philox.keep_mask(seed, offset, 1, 2, 33, 65, 128), expected)
    assert not torch.equal(philox.keep_mask(seed, offset + 4, 1, 2, 33, 65, 128), expected)


def test_chunks_do_not_show(monkeypatch):
    whole = philox.keep_mask(3, 0, 3, 5, 20, 40, 77)
    monkeypatch.setattr(philox, "_CHUNK_ELEMS", 20 * 40 * 4)
    assert torch.equal(philox.keep_mask(3, 0, 3, 5, 20, 40, 77), whole)


@pytest.mark.parametrize(("p", "bits"), [(0.1, 8), (0.5, 8), (0.9, 8), (0.001, 16)])
def test_dropped_fraction(p, bits):  # R28
    threshold = philox.dropout_threshold(p, bits)
    realised = threshold / 2**bits
    assert abs(realised - p) <= 2 ** -(bits + 1)
    keep = philox.keep_mask(11, 0, 2, 8, 257, 1025, threshold, bits)
    sigma = math.sqrt(realised * (1 - realised) / keep.numel())
    assert abs((~keep).double().mean().item() - realised) <= 4 * sigma


def test_expectation_is_exact_over_seeds():  # R28
    threshold = philox.dropout_threshold(0.5, 8)
    scale = philox.dropout_scale(threshold, 8)
    kept = sum(philox.keep_mask(s, 0, 1, 2, 16, 32, threshold).double() for s in range(400))
    sigma = math.sqrt(0.5 * 0.5 / 400) * scale
    assert (kept * scale / 400 - 1).abs().max() <= 5 * sigma  # 1024 elements


def test_threshold_bounds():
    assert philox.dropout_threshold(0.0, 8) == 0
    assert philox.dropout_threshold(1.0, 8) == 256
    assert philox.dropout_scale(256, 8) == 0.0
    assert philox.dropout_scale(64, 8) == 256 / 192
    for p, bits in [(0.001, 8), (0.999, 8), (1e-7, 16)]:
        with pytest.raises(ArgumentError, match="rounds to"):
            philox.dropout_threshold(p, bits)
    with pytest.raises(ArgumentError, match="dropout16"):  # the remedy of R28
        philox.dropout_threshold(0.001, 8)
    for p in (-0.1, 1.5, math.nan):
        with pytest.raises(ArgumentError, match=r"in \[0, 1\]"):
            philox.dropout_threshold(p, 8)
