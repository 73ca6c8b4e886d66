"""Keyword arguments of a call -> what a variant's program reads, checked and in order."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ..generator.body import Param
from ..generator.errors import ArgumentError
from ..generator.ir.nodes import Load, Name
from ..generator.ir.ranges import MAX_PARAM
from ..generator.ir.types import plain, walk
from ..generator.program import Program, ProgramCapture, program_for
from ..generator.program.presets import preset_captures, preset_params
from ..generator.variant import Variant
from . import varlen

UNBOUNDED = 1 << 30  # a window's open side: more than any two positions are apart
CAPTURE_DTYPES = {
    "bool": torch.bool,
    "int32": torch.int32,
    "int64": torch.int64,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


@dataclass(frozen=True, eq=False, slots=True)
class Extras:
    """What a call gives besides q, k, v, dropout and the scale, in the order of the compiled pass.

    Attributes:
        tensors: cu_seqlens_q, cu_seqlens_k, sink, captures: those that the variant has.
        numbers: the run-time params.
    """

    tensors: tuple[torch.Tensor, ...] = ()
    numbers: tuple[int | float, ...] = ()


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True)
class Signature:
    """The keyword arguments that calls of a variant take because of its program.

    Attributes:
        key: of the variant, for messages.
        program: of the variant.
        layout: as the variant's.
        sink: as the variant's.
        sink_dtype: what a compiled pass takes.
        paired: captures that a query's position indexes as a key's, or the reverse.
        tensors: names of the tensors, in the order of a compiled pass.
        params: names of the run-time params, in the order of a compiled pass.
        gradients: names of the tensors whose gradients the backward gives, in its order.
    """

    key: str
    program: Program
    layout: str
    sink: str
    sink_dtype: torch.dtype
    paired: tuple[str, ...]
    tensors: tuple[str, ...]
    params: tuple[str, ...]
    gradients: tuple[str, ...]

    @property
    def gradient_slots(self) -> tuple[int, ...]:
        """Places in ``tensors`` of those that have a gradient."""
        return tuple(self.tensors.index(name) for name in self.gradients)

    def bind(self, q: torch.Tensor, k: torch.Tensor, arguments: Mapping[str, Any]) -> Extras:
        """The tensors and numbers of a call whose q and k are checked already.

        Sinks are converted; ALiBi slopes and block masks of one batch or head are expanded, which
        copies nothing. An expanded or converted tensor's gradient is that of the result.

        Raises:
            ArgumentError: on a keyword that is missing, unknown, or of a wrong kind.
        """
        names = (*self.tensors, *self.params)
        if arguments.keys() != set(names):
            self._explain_names(names, arguments)
        tensors = []
        sizes: dict[str | int, int] = {"num_heads": q.shape[-2], "num_heads_kv": k.shape[-2]}
        if self.layout == "varlen":
            tensors = list(varlen.check(self.key, q, k, arguments))
            sizes |= {"batch": len(tensors[0]) - 1, "total_q": len(q), "total_k": len(k)}
        else:
            sizes |= {"batch": len(q), "seqlen_q": q.shape[1], "seqlen_k": k.shape[1]}
        if self.sink:
            tensors.append(self._sink(arguments["sink"], q))
        for capture in self.program.captures:
            tensors.append(self._capture(capture, arguments[capture.name], q, sizes))
        for name in self.paired:
            self._check_paired(name, q, k, tensors)
        numbers = tuple(self._number(p, arguments[p.name]) for p in self.program.params)
        return Extras(tuple(tensors), numbers)

    def named(self, extras: Extras) -> tuple[dict[str, torch.Tensor], dict[str, int | float]]:
        """(tensors, run-time params) of ``extras`` by name."""
        tensors = dict(zip(self.tensors, extras.tensors, strict=True))
        return tensors, dict(zip(self.params, extras.numbers, strict=True))

    def lse_without_keys(self, lse: torch.Tensor, extras: Sequence[torch.Tensor]) -> torch.Tensor:
        """``lse``, filled for a call that has no keys at all: -inf, or the sink."""
        lse.fill_(-math.inf)
        if self.sink:
            named = dict(zip(self.tensors, extras, strict=True))
            alone = named["sink"].view(-1, 1).expand_as(lse)
            lse.copy_(torch.where(self._owned(lse, named), alone, lse))
        return lse

    def gradients_without_keys(
        self,
        gradients: Sequence[torch.Tensor],
        dlse: torch.Tensor | None,
        extras: Sequence[torch.Tensor],
    ) -> None:
        """Fill the gradients of a call that has no keys at all: lse is the sink, if anything."""
        named = dict(zip(self.tensors, extras, strict=True))
        for name, gradient in zip(self.gradients, gradients, strict=True):
            gradient.zero_()
            if name == "sink" and dlse is not None:
                rows = torch.where(self._owned(dlse, named), dlse, torch.zeros_like(dlse))
                gradient.copy_(rows.sum(-1) if rows.dim() == 2 else rows.sum((0, 2)))

    def _owned(self, stats: torch.Tensor, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Which rows of lse belong to a sequence."""
        rows = torch.arange(stats.shape[-1], device=stats.device)
        if self.layout == "varlen":
            return rows < named["cu_seqlens_q"][-1]
        return rows >= 0

    def _explain_names(self, names: tuple[str, ...], arguments: Mapping[str, Any]) -> None:
        for name in arguments:
            if name not in names:
                if not names:
                    raise ArgumentError(
                        f"{self.key}: expected no captures, as its spec declares none, got "
                        f"{', '.join(arguments)}. Remove them, or correct the keyword's spelling."
                    )
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"Did you mean {near[0]}?" if near else "Remove it."
                raise ArgumentError(
                    f"{self.key}: expected keyword arguments {', '.join(names)}, got {name}. {hint}"
                )
        missing = [name for name in names if name not in arguments]
        raise ArgumentError(
            f"{self.key}: expected keyword arguments {', '.join(names)}, got no "
            f"{' and no '.join(missing)}. Add {', '.join(f'{name}=...' for name in missing)}."
        )

    def _tensor(self, name: str, tensor: object, q: torch.Tensor) -> torch.Tensor:
        where = f"{self.key}: {name}"
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{where}: expected a torch.Tensor, got {type(tensor).__name__}.")
        if tensor.device != q.device:
            raise ArgumentError(
                f"{where}: expected device {q.device} as q, got {tensor.device}. Move it."
            )
        return tensor

    def _sink(self, sink: object, q: torch.Tensor) -> torch.Tensor:
        tensor = self._tensor("sink", sink, q)
        where = f"{self.key}: sink"
        if not tensor.is_floating_point():
            raise ArgumentError(f"{where}: expected a float dtype, got {tensor.dtype}. Convert it.")
        if tensor.shape != q.shape[-2:-1]:
            raise ArgumentError(
                f"{where}: expected shape (num_heads) = ({q.shape[-2]},), got "
                f"{tuple(tensor.shape)}. It is one logit of each query head."
            )
        return tensor.to(self.sink_dtype).contiguous()

    def _capture(
        self, capture: ProgramCapture, value: object, q: torch.Tensor, sizes: dict[str | int, int]
    ) -> torch.Tensor:
        tensor = self._tensor(capture.name, value, q)
        dtype = CAPTURE_DTYPES[capture.dtype]
        if tensor.dtype != dtype:
            raise ArgumentError(
                f"{self.key}: {capture.name}: expected dtype {dtype}, got {tensor.dtype}. "
                "Convert it, or declare its dtype in the spec."
            )
        dims: tuple[str | int, ...] = capture.dims
        if capture.block is not None:
            return self._block_mask(capture.block, tensor, sizes)
        if capture.name == "alibi_slopes" and tensor.dim() == 1:
            tensor = tensor.unsqueeze(0)
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)
        if capture.name == "alibi_slopes" and tensor.shape[:1] == (1,):
            tensor = tensor.expand(shape[0], *tensor.shape[1:])
        if tensor.shape != shape:
            spelled = ", ".join(map(str, dims))
            raise ArgumentError(
                f"{self.key}: {capture.name}: expected shape ({spelled}) = {shape}, got "
                f"{tuple(tensor.shape)}. Its dims are declared in the spec."
            )
        return tensor

    def _block_mask(
        self, block: tuple[int, int], tensor: torch.Tensor, sizes: dict[str | int, int]
    ) -> torch.Tensor:
        wanted: tuple[int | None, int | None] = (None, None)  # varlen: as far as the longest
        if self.layout == "dense":
            wanted = -(-sizes["seqlen_q"] // block[0]), -(-sizes["seqlen_k"] // block[1])
        batch, num_heads = sizes["batch"], sizes["num_heads"]
        if (
            tensor.dim() != 4
            or tensor.shape[0] not in (1, batch)
            or tensor.shape[1] not in (1, num_heads)
            or any(w not in (None, n) for w, n in zip(wanted, tensor.shape[2:], strict=True))
        ):
            spelled = f"(1 or {batch}, 1 or {num_heads}, {wanted[0] or '*'}, {wanted[1] or '*'})"
            raise ArgumentError(
                f"{self.key}: block_mask: expected shape {spelled}: batch, heads and blocks of "
                f"{block[0]} queries and of {block[1]} keys, got {tuple(tensor.shape)}. "
                "kernel.block_mask builds one."
            )
        return tensor.expand(batch, num_heads, *tensor.shape[2:])

    def _check_paired(
        self, name: str, q: torch.Tensor, k: torch.Tensor, tensors: list[torch.Tensor]
    ) -> None:
        axis = 1 if self.layout == "dense" else 0
        same = q.shape[axis] == k.shape[axis]
        if same and self.layout == "varlen" and varlen.has_values(q):
            same = torch.equal(tensors[0].long(), tensors[1].long())
        if not same:
            what = "seqlen_q = seqlen_k" if axis else "cu_seqlens_q = cu_seqlens_k"
            raise ArgumentError(
                f"{self.key}: {name}: expected {what}, since positions of queries and of keys both "
                f"index it, got {q.shape[axis]} queries and {k.shape[axis]} keys. Declare one "
                "capture for queries and one for keys."
            )

    def _number(self, param: Param, value: object) -> int | float:
        name = param.name
        where = f"{self.key}: {name}"
        is_window = name in ("window_left", "window_right")
        if is_window and value is None:
            return UNBOUNDED
        kinds = int if param.type == "int" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            expected = "an int" if param.type == "int" else "a float"
            remedy = "A tensor would need a sync: pass its .item()."
            if not isinstance(value, torch.Tensor):
                remedy = "Give None for no bound." if is_window else f"Pass {expected}."
            raise ArgumentError(f"{where}: expected {expected}, got {value!r:.40}. {remedy}")
        if is_window and value < 0:
            raise ArgumentError(
                f"{where}: expected an int >= 0, or None for no bound, got {value}. It is a number "
                "of keys beside the diagonal."
            )
        if is_window:
            return int(min(value, UNBOUNDED))
        if name == "softcap" and not 0 < value < math.inf:
            raise ArgumentError(
                f"{where}: expected a positive number, got {value}. Load the variant without "
                "softcap for none."
            )
        if param.type == "int" and not -MAX_PARAM <= value <= MAX_PARAM:
            raise ArgumentError(
                f"{where}: expected an int from -2**62 to 2**62, got {value}. The kernel's "
                "arithmetic relies on it."
            )
        return int(value) if param.type == "int" else float(value)


@lru_cache(maxsize=1024)
def signature_of(variant: Variant) -> Signature:
    """The keyword arguments that calls of ``variant`` take besides those of every variant."""
    program = program_for(variant)
    names: tuple[str, ...] = varlen.NAMES if variant.layout == "varlen" else ()
    names += ("sink",) if variant.sink else ()
    gradients: tuple[str, ...] = ("sink",) if variant.sink == "learned" else ()
    return Signature(
        variant.key,
        program,
        variant.layout,
        variant.sink,
        torch.float64 if variant.dtype == "fp64" else torch.float32,
        _paired(program),
        names + tuple(capture.name for capture in program.captures),
        tuple(param.name for param in program.params),
        gradients + tuple(capture.name for capture in program.captures if capture.grad),
    )


def takes_more(variant: Variant) -> bool:
    """Whether calls of ``variant`` take keyword arguments that its program reads."""
    return bool(
        variant.layout == "varlen"
        or variant.sink
        or variant.body is not None
        or preset_captures(variant)
        or preset_params(variant)
    )


def _paired(program: Program) -> tuple[str, ...]:
    """Captures of one side's length that the other side's position indexes, ``doc[q_idx]``."""
    other = {"seqlen_k": "q_idx", "total_k": "q_idx", "seqlen_q": "kv_idx", "total_q": "kv_idx"}
    dims = {capture.name: capture.dims for capture in program.captures}
    found = []
    for root in (program.mask, program.score):
        for node in () if root is None else walk(root):
            if isinstance(node, Load):
                for dim, index in zip(dims[node.capture], node.index, strict=True):
                    index = plain(index)
                    if isinstance(index, Name) and other.get(str(dim)) == index.id:
                        found.append(node.capture)
    return tuple(dict.fromkeys(found))


def refuse_lost_gradients(signature: Signature, extras: Extras) -> None:
    """Raise an ArgumentError where autograd wants a gradient that the variant doesn't give."""
    for name, tensor in zip(signature.tensors, extras.tensors, strict=True):
        if tensor.requires_grad and name not in signature.gradients:
            remedy = "`sink: {per: head, grad: true}`" if name == "sink" else "`grad: true`"
            raise ArgumentError(
                f"{signature.key}: {name}: expected a tensor without a gradient, as the spec "
                f"declares none for it, got requires_grad=True. Declare {remedy}, or detach it."
            )
