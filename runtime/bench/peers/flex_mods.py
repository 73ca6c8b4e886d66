"""Program -> the mask_mod and score_mod of FlexAttention, as a person would write them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ....generator.ir import Const, Expr, simplify, substitute, to_text
from ....generator.program import Program
from ...samples import Shape

_POSITIONS = "b, h, q_idx, kv_idx"
_TORCH = {
    name: getattr(torch, name)
    for name in ("abs", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin",
                 "cos", "floor")
}  # fmt: skip


def mask_mod(
    program: Program, shape: Shape, values: Mapping[str, Any]
) -> Callable[..., torch.Tensor]:
    """``program``'s mask for FlexAttention; ``values`` are captures and run-time params."""
    assert program.mask is not None
    return _function(_POSITIONS, program.mask, shape, values)


def score_mod(
    program: Program, shape: Shape, values: Mapping[str, Any]
) -> Callable[..., torch.Tensor]:
    """``program``'s score likewise. A read out of range is not guarded."""
    assert program.score is not None
    return _function(f"score, {_POSITIONS}", program.score, shape, values)


def _function(
    arguments: str, expr: Expr, shape: Shape, values: Mapping[str, Any]
) -> Callable[..., torch.Tensor]:
    """The expression as a function whose captures are closure variables, which Flex wants."""
    sizes: dict[str, Expr] = {
        "q_len": Const(shape.seqlen_q),
        "kv_len": Const(shape.seqlen_k),
        "num_heads": Const(shape.num_heads),
    }
    text = to_text(simplify(substitute(expr, sizes)))
    tree = _Tensors().visit(ast.parse(text, mode="eval"))
    group = shape.num_heads // shape.num_heads_kv
    body = ast.unparse(tree).replace("h_kv", f"(h // {group})")
    names = [*values, *_TORCH, *_OWN]
    source = (
        f"def make({', '.join(names)}):\n"
        f"    def mod({arguments}):\n"
        f"        return {body}\n"
        f"    return mod\n"
    )
    scope: dict[str, Any] = {"__name__": __name__}
    exec(source, scope)  # the text is printed from typed expressions, none of it is a user's
    made: Callable[..., torch.Tensor] = scope["make"](**values, **_TORCH, **_OWN)
    return made


class _Tensors(ast.NodeTransformer):
    """Python's ``and``, ``or``, ``not`` and ``if`` want a truth value; tensors have operators."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:  # noqa: N802
        """``a and b`` as ``a & b``."""
        self.generic_visit(node)
        op: ast.operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        result = node.values[0]
        for value in node.values[1:]:
            result = ast.BinOp(result, op, value)
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:  # noqa: N802
        """``not a`` as ``logical_not(a)``."""
        self.generic_visit(node)
        return _call("logical_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:  # noqa: N802
        """``a if c else b`` as ``where(c, a, b)``."""
        self.generic_visit(node)
        return _call("where", node.test, node.body, node.orelse)

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        """``min``, ``int`` and the like as the functions of tensors below."""
        self.generic_visit(node)
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        return _call(name if name in _TORCH else f"tensor_{name}", *node.args)


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _extreme(number: str, tensor: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def extreme(first: Any, *others: Any) -> Any:
        for other in others:
            if not isinstance(other, torch.Tensor):
                first = torch.clamp(first, **{number: other})
            elif not isinstance(first, torch.Tensor):
                first = torch.clamp(other, **{number: first})
            else:
                first = tensor(first, other)
        return first

    return extreme


_OWN: dict[str, Callable[..., Any]] = {
    "where": torch.where,
    "logical_not": torch.logical_not,
    "tensor_min": _extreme("max", torch.minimum),
    "tensor_max": _extreme("min", torch.maximum),
    "tensor_clamp": torch.clamp,
    "tensor_int": lambda value: value.to(torch.int32),
    "tensor_float": lambda value: value.to(torch.float32),
}
