"""Whoever computes something else gets no row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from flashgen.generator.errors import ArgumentError
from flashgen.generator.variant import parse_key
from flashgen.runtime.bench.cells import Cell
from flashgen.runtime.bench.contest import prepare
from flashgen.runtime.bench.peers import PEERS, Attend, Refusal
from flashgen.runtime.bench.run import Settings, run
from flashgen.runtime.samples import Shape

CPU = torch.device("cpu")
MATH = PEERS["math"]


@dataclass
class Fake:
    """A peer that changes what PyTorch's math backend gives."""

    name: str
    change: object = None

    def absent(self, device):
        return None

    def attend(self, cell, data, dropout_p):
        inner = MATH.attend(cell, data, 0.0 if self.name == "forgetful" else dropout_p)
        change = self.change or (lambda out: out)
        return Attend(lambda q, k, v: change(inner.function(q, k, v)), True, inner.context)


def fail(text, kind):
    def change(out):
        raise kind(text)

    return change


def cell_of(key="d16-fp32-causal", p=0.0):
    return Cell(parse_key(key), Shape(1, 2, 2, 24, 24), p)


def settings(kind="speed"):
    return Settings(kind, CPU, ("forward", "backward"), 2, commit="c", command="x")


def test_ours_without_dropout_is_ready_beside_ours_with_it():
    contest = prepare(cell_of("d16-fp32-dropout", 0.5), [MATH, PEERS["undropped"]], CPU)
    assert list(contest.ready) == ["math", "undropped"], contest.errors


def test_the_right_are_ready_and_the_wrong_are_errors():
    off = Fake("off", lambda out: out * 1.001)
    nan = Fake("nan", lambda out: out * float("nan"))
    contest = prepare(cell_of(), [MATH, Fake("same"), off, nan], CPU)
    assert list(contest.ready) == ["math", "same"]
    assert [note.contender for note in contest.errors] == ["off", "nan"]
    assert "expected out as ours within 1e-05" in contest.errors[0].reason


def test_a_wrong_gradient_is_an_error():
    half = Fake("half", lambda out: out.detach() + 0.5 * (out - out.detach()))
    contest = prepare(cell_of(), [MATH, half], CPU)
    assert "backward: half: d16-fp32-causal: expected dq as ours" in contest.errors[0].reason
    assert list(contest.timed("forward")) == ["math", "half"]
    assert list(contest.timed("backward")) == ["math"]


def test_dropout_that_did_not_happen_is_an_error():
    contest = prepare(cell_of("d16-fp32-dropout", 0.5), [MATH, Fake("forgetful")], CPU)
    assert "forgetful: d16-fp32-dropout: expected dropout 0.5" in contest.errors[0].reason
    assert list(contest.ready) == ["math"]


def test_refusals_and_crashes_are_told_apart():
    refused = Fake("refused", fail("no such thing", Refusal))
    broken = Fake("broken", fail("line one\nline two", RuntimeError))
    full = Fake("full", fail("too much", torch.cuda.OutOfMemoryError))
    contest = prepare(cell_of(), [MATH, refused, broken, full], CPU)
    assert [(n.contender, n.reason) for n in contest.refused] == [
        ("refused", "no such thing"),
        ("full", "out of memory"),
    ]
    assert contest.errors[0].reason == "RuntimeError: line one"


@pytest.mark.parametrize("kind", ["speed", "host"])
def test_a_record_has_a_row_for_each_contender_and_pass(kind, monkeypatch):
    monkeypatch.setattr("flashgen.runtime.bench.run.HOST_CALLS", 3)
    seen = []
    peers = [MATH, Fake("same")]
    record = run([cell_of()], peers, settings(kind), progress=seen.append)
    (cell,) = record.cells
    assert seen == [record]
    assert [(m.contender, m.pass_name) for m in cell.measurements] == [
        (name, pass_name) for pass_name in ("forward", "backward") for name in ("math", "same")
    ]
    for found in cell.measurements:
        low, high = found.quartiles_ms
        assert found.range_ms[0] <= low <= found.median_ms <= high <= found.range_ms[1]
        assert (found.tflops is not None) == (kind == "speed")
    assert record.commit == "c" and record.versions["torch"]


def test_memory_is_counted_on_gpus_alone():
    with pytest.raises(ArgumentError, match="--memory: expected a CUDA device, got cpu"):
        run([cell_of()], [MATH], settings("memory"))


def test_a_peer_that_fails_while_it_is_timed_loses_its_row_alone():
    """As a compiled backward does that may be called once."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            ctx.calls = 0
            return out.clone()

        @staticmethod
        def backward(ctx, dout):
            ctx.calls += 1
            if ctx.calls > 1:
                raise RuntimeError("called twice")
            return dout

    record = run([cell_of()], [MATH, Fake("once", Once.apply)], settings())
    (cell,) = record.cells
    assert [(m.contender, m.pass_name) for m in cell.measurements if m.contender == "once"] == [
        ("once", "forward")
    ]
    assert cell.errors[0].reason == "backward: RuntimeError: called twice"


def test_a_peer_without_a_backward_has_its_forward():
    fake = Fake("forward-only")
    attend = fake.attend
    fake.attend = lambda *arguments: replace(attend(*arguments), forward_only=True)
    record = run([cell_of()], [MATH, fake], settings())
    names = [(m.contender, m.pass_name) for m in record.cells[0].measurements]
    assert names == [("math", "forward"), ("forward-only", "forward"), ("math", "backward")]
    assert not record.cells[0].errors
