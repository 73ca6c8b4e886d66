"""Expression IR -> torch tensors: what a score or mask program means, differentiable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..generator.ir.nodes import (
    Binary,
    Call,
    Const,
    Expr,
    Load,
    Name,
    Named,
    Select,
    Type,
    Unary,
)

_COMPARISONS = {
    "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
}  # fmt: skip
_BITS = {"&": torch.bitwise_and, "|": torch.bitwise_or, "^": torch.bitwise_xor}
_SMOOTH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": lambda x: _Log.apply(x, 1.0),  # type: ignore[no-untyped-call]
    "log2": lambda x: _Log.apply(x, 2.0),  # type: ignore[no-untyped-call]
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sqrt": lambda x: _Sqrt.apply(x),  # type: ignore[no-untyped-call]
    "rsqrt": torch.rsqrt,
    "sin": torch.sin,
    "cos": torch.cos,
}


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
    """What the names of an expression stand for. Tensors broadcast against each other.

    Attributes:
        b: sequence, int64.
        h: query head, int64.
        h_kv: head of keys and values, int64.
        q_idx: position of the query in its sequence, int64.
        kv_idx: position of the key in its sequence, int64.
        q_len: queries of the sequence.
        kv_len: keys of the sequence.
        num_heads: query heads.
        score: the incoming score; None where no expression reads it.
        captures: tensors by name, with the range that an index may have.
        params: run-time params by name.
        dtype: of floats, fp32 or fp64.
        active: where derivatives count; elsewhere those of captures are 0, even if they would be
            NaN. None for everywhere.
    """

    b: torch.Tensor
    h: torch.Tensor
    h_kv: torch.Tensor
    q_idx: torch.Tensor
    kv_idx: torch.Tensor
    q_len: int | torch.Tensor
    kv_len: int | torch.Tensor
    num_heads: int
    score: torch.Tensor | None = None
    captures: Mapping[str, torch.Tensor] = field(default_factory=dict)
    params: Mapping[str, int | float] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    active: torch.Tensor | None = None

    @classmethod
    def of_block(
        cls,
        batches: range,
        heads: range,
        queries: range,
        keys: range,
        *,
        sizes: tuple[int, int, int, int],
        score: torch.Tensor | None = None,
        captures: Mapping[str, torch.Tensor] | None = None,
        params: Mapping[str, int | float] | None = None,
        dtype: torch.dtype = torch.float64,
        active: torch.Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> Scope:
        """The scope of a block (batches, heads, queries, keys), one axis for each in that order.

        Args:
            batches: sequences of the block; heads, queries and keys likewise.
            heads: query heads.
            queries: positions.
            keys: positions.
            sizes: (q_len, kv_len, num_heads, num_heads_kv) of the call.
            score: broadcastable to the block.
            captures: by name.
            params: by name.
            dtype: of floats.
            active: as the attribute.
            device: of the index tensors.
        """
        q_len, kv_len, num_heads, num_heads_kv = sizes
        axes = [
            torch.arange(r.start, r.stop, device=device).view(
                [-1 if i == axis else 1 for i in range(4)]
            )
            for axis, r in enumerate((batches, heads, queries, keys))
        ]
        b, h, q_idx, kv_idx = axes
        h_kv = h // max(1, num_heads // max(1, num_heads_kv))
        return cls(
            b, h, h_kv, q_idx, kv_idx, q_len, kv_len, num_heads,
            score, captures or {}, params or {}, dtype, active,
        )  # fmt: skip


def evaluate(expr: Expr, scope: Scope) -> torch.Tensor:
    """The value of ``expr``: bool, int64 or ``scope.dtype``, of a shape that broadcasts.

    ``//`` and ``%`` floor. A division by zero, a load out of range and a shift by a count outside
    [0, 63] give 0, with no gradient. int64 wraps. Differentiable with respect to ``scope.score``
    and the captures of a float dtype. Where there is no derivative it is PyTorch's: equal
    arguments of ``min`` get half each, ``abs`` has 0 at 0, ``clamp`` passes at its ends; but where
    a derivative would divide by zero, as that of ``sqrt`` at 0, it is 0.

    Raises:
        KeyError: when the scope lacks a capture or a param.
    """
    return _Evaluator(scope).value(expr)


class _Evaluator:
    """One walk; a node that is shared, such as a let's, is computed once."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.device = scope.q_idx.device
        self.known: dict[int, torch.Tensor] = {}

    def value(self, expr: Expr) -> torch.Tensor:
        if id(expr) not in self.known:
            self.known[id(expr)] = self._compute(expr)
        return self.known[id(expr)]

    def _compute(self, expr: Expr) -> torch.Tensor:
        match expr:
            case Const(value):
                return self._tensor(value)
            case Name(name, kind):
                return self._name(name, kind)
            case Named(_, inner):
                return self.value(inner)
            case Load(capture, index):
                found = self._load(self.scope.captures[capture], [self.value(i) for i in index])
                if self.scope.active is None or not found.requires_grad:
                    return found
                return torch.where(self.scope.active, found, torch.zeros_like(found))
            case Unary(op, operand):
                return self._unary(op, self.value(operand))
            case Binary(op, left, right):
                return self._binary(op, self.value(left), self.value(right))
            case Select(condition, then, otherwise):
                a, b = self._promoted(self.value(then), self.value(otherwise))
                return torch.where(_truth(self.value(condition)), a, b)
            case Call(function, args):
                return self._call(function, [self.value(arg) for arg in args])

    def _tensor(self, value: int | float | bool) -> torch.Tensor:
        dtype = torch.bool if isinstance(value, bool) else torch.int64
        if isinstance(value, float):
            dtype = self.scope.dtype
        return torch.tensor(value, dtype=dtype, device=self.device)

    def _name(self, name: str, kind: Type) -> torch.Tensor:
        if name in self.scope.params:
            number = self.scope.params[name]
            return self._tensor(float(number) if kind == "float" else number)
        value = getattr(self.scope, name)
        if name == "score":
            return self._float(value)
        return value if isinstance(value, torch.Tensor) else self._tensor(value)

    def _float(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.scope.dtype)

    def _promoted(self, *values: torch.Tensor) -> list[torch.Tensor]:
        """All of the widest type among them: bool, then int, then float."""
        if any(v.is_floating_point() for v in values):
            return [self._float(v) for v in values]
        if any(v.dtype != torch.bool for v in values):
            return [v.to(torch.int64) for v in values]
        return list(values)

    def _numbers(self, *values: torch.Tensor) -> list[torch.Tensor]:
        """As ``_promoted``, a bool counting as an int."""
        return self._promoted(*values, torch.zeros((), dtype=torch.int64, device=self.device))[:-1]

    def _load(self, tensor: torch.Tensor, index: list[torch.Tensor]) -> torch.Tensor:
        if tensor.is_floating_point():
            tensor = self._float(tensor)
        elif tensor.dtype != torch.bool:
            tensor = tensor.to(torch.int64)
        if not index:
            return tensor.view(())
        inside = torch.ones((), dtype=torch.bool, device=self.device)
        flat = torch.zeros((), dtype=torch.int64, device=self.device)
        for position, size in zip(index, tensor.shape, strict=True):
            position = position.to(torch.int64)
            inside = inside & (position >= 0) & (position < size)
            flat = flat * size + position.clamp(0, max(0, size - 1))
        if tensor.numel() == 0:
            return torch.zeros(flat.shape, dtype=tensor.dtype, device=self.device)
        # index_select, since its gradient is a plain index_add
        found = tensor.reshape(-1).index_select(0, flat.reshape(-1)).view(flat.shape)
        return torch.where(inside, found, torch.zeros_like(found))

    def _unary(self, op: str, operand: torch.Tensor) -> torch.Tensor:
        return ~_truth(operand) if op == "not" else -self._numbers(operand)[0]

    def _binary(self, op: str, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if op in ("and", "or"):
            left, right = _truth(left), _truth(right)
            return left & right if op == "and" else left | right
        if op in _COMPARISONS:
            return _COMPARISONS[op](*self._promoted(left, right))
        if op in _BITS:
            return _BITS[op](*self._promoted(left, right))
        if op in ("<<", ">>"):
            return _shift(op, left.to(torch.int64), right.to(torch.int64))
        if op == "/":
            return _divide(self._float(left), self._float(right))
        left, right = self._numbers(left, right)
        if op == "//":
            return _floor_divide(left, right)
        if op == "%":
            rest = left - _floor_divide(left, right) * right
            return torch.where(right == 0, torch.zeros_like(rest), rest)
        if op == "+":
            return left + right
        return left - right if op == "-" else left * right

    def _call(self, function: str, args: list[torch.Tensor]) -> torch.Tensor:
        if function in _SMOOTH:
            return _SMOOTH[function](self._float(args[0]))
        if function == "float":
            return self._float(args[0])
        if function in ("int", "floor"):
            whole = args[0].floor() if function == "floor" and args[0].is_floating_point() else None
            return (args[0] if whole is None else whole).detach().to(torch.int64)
        numbers = self._numbers(*args)
        if function == "abs":
            return numbers[0].abs()
        if function == "clamp":
            # broadcast first: torch's derivative by a bound of its own shape fails
            value, low, high = torch.broadcast_tensors(*numbers)  # type: ignore[no-untyped-call]
            return torch.clamp(value, low, high)
        extreme = torch.minimum if function == "min" else torch.maximum
        found = numbers[0]
        for other in numbers[1:]:
            found = extreme(found, other)
        return found


def _truth(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype == torch.bool else value != 0


def _divide(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    zero = right == 0
    quotient = left / torch.where(zero, torch.ones_like(right), right)
    return torch.where(zero, torch.zeros_like(quotient), quotient)


def _floor_divide(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Floored, with no gradient; 0 where ``right`` is."""
    left, right = left.detach(), right.detach()
    if left.is_floating_point():
        return _divide(left, right).floor()
    # -1 apart: the smallest int64 over it overflows, which traps
    plain = torch.where((right == 0) | (right == -1), torch.ones_like(right), right)
    quotient = torch.div(left, plain, rounding_mode="floor")
    quotient = torch.where(right == -1, -left, quotient)
    return torch.where(right == 0, torch.zeros_like(quotient), quotient)


def _shift(op: str, left: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    legal = (count >= 0) & (count < 64)
    count = count.clamp(0, 63)
    shifted = left << count if op == "<<" else left >> count
    return torch.where(legal, shifted, torch.zeros_like(shifted))


class _Log(torch.autograd.Function):
    """The logarithm (base e, or 2 where ``base`` is 2); its derivative is 0 at 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, base: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = 1 / math.log(2) if base == 2 else 1.0
        return torch.log2(x) if base == 2 else torch.log(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return _divide(grad * ctx.factor, x), None


class _Sqrt(torch.autograd.Function):
    """The square root; its derivative is 0 at 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        root = torch.sqrt(x)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (root,) = ctx.saved_tensors
        return _divide(grad, 2 * root)
