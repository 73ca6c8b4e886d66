from __future__ import annotations

import math

import pytest
import torch

from flashgen.generator.errors import ArgumentError
from flashgen.generator.spec import load_specs
from flashgen.runtime.captures import UNBOUNDED, refuse_lost_gradients, signature_of

SPEC = """head_dim: 16
dtype: fp16
window: runtime
softcap: runtime
alibi: true
sink: {per: head, grad: true}
block_mask: {q: 64, kv: 32}
captures:
  doc: {dims: [batch, seqlen_k], dtype: int32}
  bias: {dims: [num_heads, 5], dtype: bf16, grad: true}
params:
  W: {runtime: int}
  cap: {runtime: float}
mask: "doc[b, kv_idx] < W"
score: "score * cap + bias[h, q_idx]"
"""
PACKED = """head_dim: 16
dtype: fp64
layout: varlen
captures:
  doc: {dims: [total_k], dtype: int64}
mask: "doc[q_idx] == doc[kv_idx]"
"""


def signature(text=SPEC):
    return signature_of(load_specs(text, "test.yaml")[0].variants[0])


def dense():
    return torch.empty(2, 70, 4, 16), torch.empty(2, 40, 2, 16)


def packed(total_q=10, total_k=10):
    return torch.empty(total_q, 4, 16), torch.empty(total_k, 2, 16)


def arguments(**change):
    given = {
        "sink": torch.zeros(4, dtype=torch.float16),
        "alibi_slopes": torch.ones(4),
        "block_mask": torch.ones(1, 1, 2, 2, dtype=torch.bool),
        "doc": torch.zeros(2, 40, dtype=torch.int32),
        "bias": torch.zeros(4, 5, dtype=torch.bfloat16),
        "window_left": 7,
        "window_right": None,
        "softcap": 50,
        "W": 3,
        "cap": 2,
    } | change
    return {name: value for name, value in given.items() if value is not ...}


def test_the_order_is_that_of_the_compiled_pass():
    found = signature()
    assert found.tensors == ("sink", "alibi_slopes", "block_mask", "bias", "doc")
    assert found.params == ("window_left", "window_right", "softcap", "W", "cap")
    assert found.gradients == ("sink", "bias") and found.gradient_slots == (0, 3)
    assert signature(PACKED).tensors == ("cu_seqlens_q", "cu_seqlens_k", "doc")


def test_bind_gives_tensors_and_numbers_in_order():
    given = arguments()
    extras = signature().bind(*dense(), dict(reversed(given.items())))
    sink, slopes, blocks, bias, doc = extras.tensors
    assert sink.dtype == torch.float32 and slopes.shape == (2, 4) and slopes.stride(0) == 0
    assert blocks.shape == (2, 4, 2, 2) and blocks.data_ptr() == given["block_mask"].data_ptr()
    assert bias is given["bias"] and doc is given["doc"]
    assert extras.numbers == (7, UNBOUNDED, 50.0, 3, 2.0)
    assert [type(number) for number in extras.numbers] == [int, int, float, int, float]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doc": ...}, r"expected keyword arguments sink, .*, got no doc. Add doc=\.\.\."),
        ({"dok": 3}, "got dok. Did you mean doc?"),
        ({"zzzzz": 3}, "got zzzzz. Remove it."),
        ({"doc": 3}, "doc: expected a torch.Tensor, got int"),
        ({"doc": torch.zeros(2, 40).long()}, "doc: expected dtype torch.int32, got torch.int64"),
        ({"doc": torch.zeros(2, 41).int()}, r"\(batch, seqlen_k\) = \(2, 40\), got \(2, 41\)"),
        ({"doc": torch.zeros(40).int()}, r"\(batch, seqlen_k\) = \(2, 40\), got \(40,\)"),
        ({"doc": torch.zeros(2, 40).int().to("meta")}, "doc: expected device cpu as q, got meta"),
        ({"bias": torch.zeros(4, 6).bfloat16()}, r"\(num_heads, 5\) = \(4, 5\), got \(4, 6\)"),
        ({"sink": torch.zeros(4).int()}, "sink: expected a float dtype"),
        ({"sink": torch.zeros(2)}, r"sink: expected shape \(num_heads\) = \(4,\), got \(2,\)"),
        ({"alibi_slopes": torch.ones(3, 4)}, r"\(batch, num_heads\) = \(2, 4\), got \(3, 4\)"),
        ({"alibi_slopes": torch.ones(4).half()}, "alibi_slopes: expected dtype torch.float32"),
        ({"block_mask": torch.ones(1, 1, 2, 3).bool()}, r"\(1 or 2, 1 or 4, 2, 2\)"),
        ({"block_mask": torch.ones(2, 2).bool()}, "block_mask: expected shape"),
        ({"block_mask": torch.ones(1, 1, 2, 2)}, "block_mask: expected dtype torch.bool"),
        ({"window_left": -1}, "window_left: expected an int >= 0, or None for no bound, got -1"),
        ({"window_left": 2.0}, "window_left: expected an int, got 2.0. Give None for no bound"),
        ({"window_left": True}, "window_left: expected an int, got True"),
        ({"softcap": 0}, "softcap: expected a positive number, got 0"),
        ({"softcap": math.nan}, "softcap: expected a positive number, got nan"),
        ({"softcap": None}, "softcap: expected a float, got None"),
        ({"W": torch.tensor(3)}, r"W: expected an int, got tensor\(3\).*pass its .item\(\)"),
        ({"W": 2**62 + 1}, r"W: expected an int from -2\*\*62 to 2\*\*62, got 4611686018427387905"),
        ({"W": -(2**62) - 1}, r"W: expected an int from -2\*\*62 to 2\*\*62"),
        ({"W": 10**30}, r"W: expected an int from -2\*\*62 to 2\*\*62"),
        ({"W": 3.0}, "W: expected an int, got 3.0. Pass an int"),
        ({"cap": False}, "cap: expected a float, got False"),
    ],
)
def test_what_is_refused(change, message):
    with pytest.raises(ArgumentError, match=message):
        signature().bind(*dense(), arguments(**change))


@pytest.mark.parametrize("value", [2**62, -(2**62), 0])
def test_the_ints_that_ranges_are_made_for(value):
    assert value in signature().bind(*dense(), arguments(W=value)).numbers


def test_a_window_wider_than_any_sequence_is_no_bound():
    extras = signature().bind(*dense(), arguments(window_left=2**70))
    assert extras.numbers[0] == UNBOUNDED


def test_gradients_that_would_be_lost():
    found = signature()
    bias = torch.zeros(4, 5, dtype=torch.bfloat16, requires_grad=True)
    refuse_lost_gradients(found, found.bind(*dense(), arguments(bias=bias)))
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(ArgumentError, match="alibi_slopes: expected a tensor without a gradient"):
        refuse_lost_gradients(found, found.bind(*dense(), arguments(alibi_slopes=slopes)))


def bind_packed(q_starts, k_starts, dtype=torch.int32, **sizes):
    q, k = packed(**sizes)
    doc = torch.zeros(len(k), dtype=torch.int64)
    starts = [torch.tensor(s, dtype=dtype) for s in (q_starts, k_starts)]
    named = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), starts, strict=True))
    return signature(PACKED).bind(q, k, {"doc": doc, **named})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_of_packed_sequences(dtype):
    extras = bind_packed([0, 3, 3, 8], [0, 3, 3, 8], dtype)
    assert extras.tensors[0].tolist() == [0, 3, 3, 8]
    bind_packed([0], [0], dtype)


@pytest.mark.parametrize(
    ("q_starts", "k_starts", "message"),
    [
        ([1, 3], [0, 3], "cu_seqlens_q: expected it to start at 0, got 1"),
        ([0, 3], [0, 3, 2], "cu_seqlens_k: .*never decrease, got 3 and then 2 at 2"),
        ([0, 3], [0, 3, 4], "cu_seqlens_k: expected the length 2 of cu_seqlens_q, got 3"),
        ([0, 11], [0, 3], "cu_seqlens_q: expected a last offset of at most 10.* got 11"),
        ([], [0], r"cu_seqlens_q: expected shape \(sequences \+ 1,\), got \(0,\)"),
        ([[0, 1]], [0, 1], r"cu_seqlens_q: expected shape \(sequences \+ 1,\), got \(1, 2\)"),
        ([0, 4], [0, 5], "doc: expected cu_seqlens_q = cu_seqlens_k"),
    ],
)
def test_offsets_that_are_refused(q_starts, k_starts, message):
    with pytest.raises(ArgumentError, match=message):
        bind_packed(q_starts, k_starts)


def test_offsets_of_a_wrong_dtype():
    with pytest.raises(ArgumentError, match="cu_seqlens_q: expected dtype torch.int32 or"):
        bind_packed([0.0, 1.0], [0, 1], dtype=None)


def test_a_capture_of_both_sides_needs_as_many_queries_as_keys():
    with pytest.raises(ArgumentError, match="doc: expected cu_seqlens_q = cu_seqlens_k"):
        bind_packed([0, 3], [0, 3], total_q=9)
    both = SPEC.replace("doc[b, kv_idx] < W", "doc[b, q_idx] < W")
    with pytest.raises(ArgumentError, match="doc: expected seqlen_q = seqlen_k.*70 queries"):
        signature(both).bind(*dense(), arguments())
    one_side = SPEC.replace("doc[b, kv_idx] < W", "doc[b, q_idx - 1] < W")
    assert signature(one_side).paired == ()
