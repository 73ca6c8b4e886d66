"""Cell + contenders -> calls of each, checked against ours before anything is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from ...generator.errors import BenchError
from ...generator.variant import PASSES
from ..build import Progress, build
from ..samples import Inputs
from ..tuning.store import request_for
from .cells import Cell
from .peers import Attend, Ours, Peer, Refusal
from .record import CellRecord, Measurement, Note
from .timing import Timed, rotate

INPUT_SETS = 2
_ROUNDINGS = 8.0  # of the dtype: what two right results may differ by, relative to their norm
_LEAST_BOUND = 1e-5  # fp32 sums in another order, fp64 by peers that have fp32 inside


@dataclass(frozen=True, eq=False, slots=True)
class Calls:
    """The calls of one contender on one set of inputs.

    Attributes:
        attend: the contender.
        leaves: q, k and v as it takes them.
        dout: gradient of its output.
    """

    attend: Attend
    leaves: tuple[torch.Tensor, ...]
    dout: torch.Tensor

    @classmethod
    def of(cls, attend: Attend, data: Inputs) -> Calls:
        """Views of ``data`` in the contender's layout."""
        tensors = (data.q, data.k, data.v, data.dout)
        if attend.heads_first:
            tensors = tuple(t.transpose(1, 2) for t in tensors)  # type: ignore[assignment]
        leaves = tuple(t.detach().requires_grad_() for t in tensors[:3])
        return cls(attend, leaves, tensors[3])

    def forward(self) -> torch.Tensor:
        """The output, nothing recorded."""
        with torch.no_grad():
            return self.attend.function(*self.leaves)

    def recorded(self) -> torch.Tensor:
        """The output, recorded by autograd."""
        return self.attend.function(*self.leaves)

    def backward(self) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A call of the backward alone, of an output that it keeps."""
        out = self.attend.function(*self.leaves)
        return partial(torch.autograd.grad, out, self.leaves, self.dout, retain_graph=True)

    def step(self) -> tuple[torch.Tensor, ...]:
        """A forward and its backward."""
        out = self.attend.function(*self.leaves)
        return torch.autograd.grad(out, self.leaves, self.dout)

    def call(self, pass_name: str) -> Callable[[], object]:
        """The call of a pass."""
        return self.backward() if pass_name == "backward" else getattr(self, pass_name)

    def output(self) -> dict[str, torch.Tensor]:
        """``out`` in our layout."""
        return self._named(("out",), (self.forward(),))

    def gradients(self) -> dict[str, torch.Tensor]:
        """dq, dk and dv in our layout."""
        return self._named(("dq", "dk", "dv"), self.step())

    def _named(
        self, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]
    ) -> dict[str, torch.Tensor]:
        if self.attend.heads_first:
            tensors = tuple(t.transpose(1, 2) for t in tensors)
        return dict(zip(names, tensors, strict=True))


@dataclass(eq=False, slots=True)
class Contest:
    """The contenders of a cell that are ready, and why others aren't.

    Attributes:
        cell: what they compute.
        ready: calls of each, one for each set of inputs.
        forward_only: those of them that have no backward, or a wrong one.
        refused: who has no kernel for it.
        errors: who failed, or computes something else.
    """

    cell: Cell
    ready: dict[str, list[Calls]] = field(default_factory=dict)
    forward_only: set[str] = field(default_factory=set)
    refused: list[Note] = field(default_factory=list)
    errors: list[Note] = field(default_factory=list)

    def timed(self, pass_name: str) -> dict[str, Timed]:
        """What to time of each contender that is ready; one that runs out of memory is not."""
        found = {}
        backward = pass_name != "forward"
        for name, sets in list(self.ready.items()):
            if backward and name in self.forward_only:
                continue
            context = sets[0].attend.context
            with self.guard(name, backward), context():
                call = rotate([calls.call(pass_name) for calls in sets])
                for _ in range(2 * len(sets)):  # what fails, fails here and loses its row alone
                    call()
                found[name] = Timed(call, context)
        return found

    @contextmanager
    def guard(self, name: str, backward: bool = False) -> Iterator[None]:
        """Turn a contender's refusal, failure or lack of memory into a note.

        It then takes no part any more; where its ``backward`` failed, no part in that.
        """
        try:
            yield
        except Refusal as refusal:
            self._drop(name, backward, self.refused, str(refusal))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            self._drop(name, backward, self.refused, "out of memory")
        except BenchError as error:
            self._drop(name, backward, self.errors, str(error))
        except Exception as error:  # whatever a peer may raise: the others go on
            lines = str(error).strip().splitlines() or [""]
            self._drop(name, backward, self.errors, f"{type(error).__name__}: {lines[0]}")

    def record(self, measurements: Sequence[Measurement]) -> CellRecord:
        """The cell's record."""
        cell, variant, shape = self.cell, self.cell.variant, self.cell.shape
        return CellRecord(
            key=variant.key,
            label=cell.label,
            head_dim=variant.head_dim,
            head_dim_v=variant.head_dim_v,
            dtype=variant.dtype,
            causal=bool(variant.causal),
            batch=shape.batch,
            num_heads=shape.num_heads,
            num_heads_kv=shape.num_heads_kv,
            seqlen_q=shape.seqlen_q,
            seqlen_k=shape.seqlen_k,
            dropout_p=cell.dropout_p,
            measurements=tuple(measurements),
            refused=tuple(self.refused),
            errors=tuple(self.errors),
        )

    def _drop(self, name: str, backward: bool, notes: list[Note], reason: str) -> None:
        if backward:
            self.forward_only.add(name)
        else:
            self.ready.pop(name, None)
        notes.append(Note(name, f"backward: {reason}" if backward else reason))


def build_ours(
    cells: Sequence[Cell],
    contenders: Sequence[Peer],
    device: torch.device,
    progress: Progress | None = None,
) -> None:
    """Compile what the cells need of ours in one go.

    Raises:
        FlashgenError: as `build`.
    """
    requests = [
        request_for(cell.variant, pass_name, device, contender.family, cell.spec)
        for contender in contenders
        if isinstance(contender, Ours)
        for cell in cells
        for pass_name in PASSES
    ]
    build(dict.fromkeys(requests), progress=progress)


def prepare(
    cell: Cell, contenders: Sequence[Peer], device: torch.device, backward: bool = True
) -> Contest:
    """The contenders on a cell's inputs, those that differ from the first left out as errors.

    Args:
        cell: what to compute.
        contenders: ours first.
        device: where.
        backward: whether gradients are compared too.

    Raises:
        FlashgenError: when the first, ours, can't run the cell itself.
    """
    contest = Contest(cell)
    sets = [cell.inputs(device, seed) for seed in range(INPUT_SETS)]
    first = _plain(contenders[0], cell, sets[0])
    with first.attend.context():
        out, gradients = first.output(), first.gradients() if backward else {}
    for contender in contenders:
        name = contender.name
        with contest.guard(name):
            attend = contender.attend(cell, sets[0], cell.dropout_p)
            plain = Calls.of(attend, sets[0])
            if cell.dropout_p:  # random bits are each implementation's own
                plain = _plain(contender, cell, sets[0])
            with attend.context():
                compare(name, cell, plain.output(), out)
                # one attend for all sets: their captures are alike, and some compile for each
                contest.ready[name] = [Calls.of(attend, data) for data in sets]
                if cell.dropout_p and attend.drops:
                    _check_dropout(contest.ready[name][0], name, cell)
                if attend.forward_only:
                    contest.forward_only.add(name)
                elif backward:
                    with contest.guard(name, backward=True):
                        compare(name, cell, plain.gradients(), gradients)
    return contest


def _plain(contender: Peer, cell: Cell, data: Inputs) -> Calls:
    """A contender's calls without dropout."""
    return Calls.of(contender.attend(replace(cell, dropout_p=0.0), data, 0.0), data)


def compare(
    name: str, cell: Cell, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    """Check results against ours: by the norm of the difference over that of the result.

    Raises:
        BenchError: when one differs by more than eight roundings.
    """
    for quantity, ours in expected.items():
        theirs = found[quantity]
        bound = max(_LEAST_BOUND, _ROUNDINGS * torch.finfo(ours.dtype).eps)
        norm = ours.float().norm()
        error = ((theirs.float() - ours.float()).norm() / norm).item() if norm else 0.0
        if not error <= bound:  # NaN too
            raise BenchError(
                f"{name}: {cell.label}: expected {quantity} as ours within {bound:.2g} of its "
                f"norm, got a difference of {error:.2g}. One of the two is wrong."
            )


def _check_dropout(calls: Calls, name: str, cell: Cell) -> None:
    """Two calls with dropout must differ, or none took place.

    Raises:
        BenchError: when they are the same.
    """
    first, second = calls.forward(), calls.forward()
    if torch.equal(first, second):
        raise BenchError(
            f"{name}: {cell.label}: expected dropout {cell.dropout_p}, got the same output twice."
        )
