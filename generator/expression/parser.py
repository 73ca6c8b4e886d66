"""Expression text and scope -> typed IR, through Python's own parser.

Every conversion is written out: an int beside a float becomes ``float(x)`` (a literal becomes a
float), so operands of one operator have one type and no back end has to promote.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..body import Capture
from ..ir.nodes import Binary, Call, Const, Expr, Load, Name, Select, Type, Unary
from .errors import ExpressionError
from .names import nearest
from .operators import A_TYPE, BINARY, COMPARE, FUNCTION_ARGS, INT64, LOAD_TYPE, OUR_WORDS
from .scope import Let, Scope
from .size import check_size
from .tokens import check_tokens

MAX_DEPTH = 100  # of Python's tree; a sum of that many terms is as deep


@dataclass(frozen=True, slots=True)
class Parsed:
    """An expression, its type, and the names that it reads, those of its lets included."""

    expr: Expr
    type: Type
    used: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Value:
    expr: Expr
    type: Type
    node: ast.expr


def parse_expression(text: str, scope: Scope, want: Type | None = None) -> Parsed:
    """The IR of ``text``.

    Args:
        text: the expression; line breaks count as spaces.
        scope: what it may name.
        want: the type that it must have; an int is turned into a float, nothing else is.

    Raises:
        ExpressionError: at the characters at fault.
    """
    for line_break in "\r\n\x85\u2028\u2029":
        text = text.replace(line_break, " ")
    check_tokens(text, scope.entries.keys())
    body = _tree(text)
    _check_depth(body)
    parser = _Parser(scope)
    value = parser.wanted(parser.value(body), want)
    check_size(value.expr, 0, len(text.rstrip()))
    return Parsed(value.expr, value.type, frozenset(parser.used))


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError as error:
        start = max((error.offset or 2) - 2, 0)
        end = max((error.end_offset or 0) - 2, start + 1)
        raise ExpressionError(f"expected an expression: {error.msg}.", start, end) from None
    except (RecursionError, MemoryError, ValueError):
        raise ExpressionError(
            "expected an expression of fewer parts. Split it by 'let:'.", 0, len(text)
        ) from None


def _check_depth(body: ast.expr) -> None:
    level: list[ast.AST] = [body]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    deepest = next((node for node in level if isinstance(node, ast.expr)), body)
    raise _at(
        deepest, f"expected at most {MAX_DEPTH} levels of nesting, got more. Split it by 'let:'."
    )


def _at(node: ast.expr, message: str) -> ExpressionError:
    """An error at ``node``, whose columns count the parenthesis put before the text."""
    return ExpressionError(message, node.col_offset - 1, (node.end_col_offset or 0) - 1)


class _Parser:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.used: set[str] = set()

    def value(self, node: ast.expr) -> _Value:
        """The IR of one node of Python's tree."""
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Subscript):
            return self._load(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.BoolOp):
            return self._logical(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.IfExp):
            parts = [self.value(part) for part in (node.test, node.body, node.orelse)]
            return self._select(parts, node)
        if isinstance(node, ast.Call):
            return self._call(node)
        raise _at(node, "this is not part of the language.")

    def wanted(self, value: _Value, want: Type | None) -> _Value:
        """``value`` as a ``want``, where that is legal."""
        if want is None or value.type == want:
            return value
        if want == "float" and value.type == "int":
            return _float(value)
        remedy = {
            "bool": "Compare it, as in 'x != 0'.",
            "float": "Choose numbers by 'a if condition else b'.",
            "int": "Round it by floor(x) or int(x).",
        }[want]
        if want == "int" and value.type == "bool":
            remedy = "Write int(x) for 0 and 1."
        message = f"expected {A_TYPE[want]}, got {A_TYPE[value.type]}. {remedy}"
        raise _at(value.node, message)

    def _constant(self, node: ast.Constant) -> _Value:
        value = node.value
        if isinstance(value, bool):
            return _Value(Const(value), "bool", node)
        if isinstance(value, int):
            if value > INT64:
                raise _at(node, f"expected an integer up to {INT64}, got {value}.")
            return _Value(Const(value), "int", node)
        if isinstance(value, float):
            if value in (float("inf"), float("-inf")):
                raise _at(node, "expected a finite number, got one beyond all floats.")
            return _Value(Const(value), "float", node)
        raise _at(node, "expected a number.")

    def _name(self, node: ast.Name) -> _Value:
        entry = self._entry(node)
        if isinstance(entry, Capture):
            if entry.dims:
                dims = ", ".join(map(str, entry.dims))
                raise _at(
                    node,
                    f"expected an element of {node.id}, which has the dimensions ({dims}), got "
                    f"the whole. Write {node.id}[...] with {_count(len(entry.dims), 'index')}.",
                )
            return _Value(
                Load(entry.name, (), LOAD_TYPE[entry.dtype]), LOAD_TYPE[entry.dtype], node
            )
        if isinstance(entry, Let):
            return _Value(entry.expr, entry.type, node)
        if isinstance(entry, Name):
            return _Value(entry, entry.type, node)
        return _Value(entry, _type_of_constant(entry), node)

    def _entry(self, node: ast.Name) -> Const | Name | Capture | Let:
        name, entries = node.id, self._scope.entries
        if name in self._scope.refused:
            raise _at(node, f"{name!r} can't be read here: {self._scope.refused[name]}.")
        if name not in entries:
            if name in FUNCTION_ARGS:
                raise _at(node, f"{name!r} is a function. Write {name}(...).")
            hint = nearest(OUR_WORDS.get(name, name), (*entries, "True", "False"))
            raise _at(
                node,
                f"unknown name {name!r}.{hint} Names in scope: {', '.join(entries)}.",
            )
        entry = entries[name]
        self.used.add(name)
        if isinstance(entry, Let):
            self.used |= entry.used
        return entry

    def _load(self, node: ast.Subscript) -> _Value:
        if not isinstance(node.value, ast.Name):
            raise _at(node, "expected the name of a capture before '['.")
        entry = self._entry(node.value)
        if not isinstance(entry, Capture):
            raise _at(node.value, f"expected a capture before '[', got {node.value.id!r}.")
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != len(entry.dims):
            dims = ", ".join(map(str, entry.dims))
            shape = f"the dimensions ({dims})" if entry.dims else "no dimensions: it is a scalar"
            raise _at(
                node,
                f"expected {_count(len(entry.dims), 'index')} of {entry.name}, which has {shape}, "
                f"got {len(indices)}.",
            )
        index = tuple(self.wanted(self.value(part), "int").expr for part in indices)
        kind = LOAD_TYPE[entry.dtype]
        return _Value(Load(entry.name, index, kind), kind, node)

    def _unary(self, node: ast.UnaryOp) -> _Value:
        negated = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        if negated and _is_int(node.operand, INT64 + 1):
            return _Value(Const(-INT64 - 1), "int", node)
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return _Value(Unary("not", self.wanted(operand, "bool").expr), "bool", node)
        self._number(operand)
        if isinstance(node.op, ast.UAdd):
            return _Value(operand.expr, operand.type, node)
        if not isinstance(node.op, ast.USub):
            raise _at(node, "this is not part of the language.")
        if isinstance(operand.expr, Const):
            return _Value(Const(-operand.expr.value), operand.type, node)
        return _Value(Unary("-", operand.expr), operand.type, node)

    def _binary(self, node: ast.BinOp) -> _Value:
        operator = BINARY.get(type(node.op))
        if operator is None:
            raise _at(node, "this operator is not part of the language.")
        left, right = self.value(node.left), self.value(node.right)
        if operator in ("&", "|", "^") and left.type == right.type == "bool":
            return _Value(Binary(operator, left.expr, right.expr), "bool", node)
        if operator in ("&", "|", "^", "<<", ">>"):
            left, right = self.wanted(left, "int"), self.wanted(right, "int")
            return _Value(Binary(operator, left.expr, right.expr), "int", node)
        for side in (left, right):
            self._number(side)
        if operator == "/":
            left, right = _float(left), _float(right)
        left, right = _unified(left, right)
        return _Value(Binary(operator, left.expr, right.expr), left.type, node)

    def _logical(self, node: ast.BoolOp) -> _Value:
        operator = "and" if isinstance(node.op, ast.And) else "or"
        parts = [self.wanted(self.value(part), "bool").expr for part in node.values]
        return _Value(_joined(operator, parts), "bool", node)

    def _compare(self, node: ast.Compare) -> _Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        links = []
        for operator, left, right in zip(node.ops, values, values[1:], strict=False):
            sign = COMPARE.get(type(operator))
            if sign is None:
                raise _at(right.node, "this comparison is not part of the language.")
            if not (sign in ("==", "!=") and left.type == right.type == "bool"):
                self._number(left)
                self._number(right)
            left, right = _unified(left, right)
            links.append(Binary(sign, left.expr, right.expr))
        return _Value(_joined("and", links), "bool", node)

    def _select(self, parts: Sequence[_Value], node: ast.expr) -> _Value:
        condition = self.wanted(parts[0], "bool")
        then, otherwise = parts[1], parts[2]
        if "bool" in (then.type, otherwise.type) and then.type != otherwise.type:
            raise _at(
                otherwise.node,
                f"expected {A_TYPE[then.type]}, as the other branch has it, got "
                f"{A_TYPE[otherwise.type]}.",
            )
        then, otherwise = _unified(then, otherwise)
        return _Value(Select(condition.expr, then.expr, otherwise.expr), then.type, node)

    def _call(self, node: ast.Call) -> _Value:
        assert isinstance(node.func, ast.Name)  # by check_tokens
        name = node.func.id
        if node.keywords:
            raise _at(node, f"expected {name}(...) with arguments by position.")
        least, most = FUNCTION_ARGS[name]
        if not least <= len(node.args) <= most:
            count = _count(least, "argument") + (" or more" if most > least else "")
            raise _at(node, f"expected {count} of {name}, got {len(node.args)}.")
        args = [self.value(arg) for arg in node.args]
        if name == "where":
            return self._select(args, node)
        if name in ("int", "float"):
            return _converted(name, args[0], node)
        for arg in args:
            self._number(arg)
        if name == "floor" and args[0].type == "int":
            return _Value(args[0].expr, "int", node)
        if name in ("abs", "min", "max", "clamp"):
            args = list(_unified(*args))
            kind = args[0].type
            exprs = [arg.expr for arg in args]
            while name in ("min", "max") and len(exprs) > 2:
                exprs[:2] = [Call(name, (exprs[0], exprs[1]))]
            return _Value(Call(name, tuple(exprs)), kind, node)
        return _Value(
            Call(name, (_float(args[0]).expr,)), "int" if name == "floor" else "float", node
        )

    def _number(self, value: _Value) -> None:
        if value.type == "bool":
            raise _at(
                value.node, "expected a number, got a bool. Write int(x) for 0 and 1, or 'and'."
            )


def _converted(name: str, arg: _Value, node: ast.expr) -> _Value:
    if arg.type == name:
        return _Value(arg.expr, arg.type, node)
    if name == "float" and arg.type == "int":
        return _Value(_float(arg).expr, "float", node)
    return _Value(Call(name, (arg.expr,)), "int" if name == "int" else "float", node)


def _type_of_constant(constant: Const) -> Type:
    if isinstance(constant.value, bool):
        return "bool"
    return "float" if isinstance(constant.value, float) else "int"


def _float(value: _Value) -> _Value:
    if value.type == "float":
        return value
    if isinstance(value.expr, Const):
        return _Value(Const(float(value.expr.value)), "float", value.node)
    return _Value(Call("float", (value.expr,)), "float", value.node)


def _unified(*values: _Value) -> tuple[_Value, ...]:
    """Numbers of one type: floats if any is one."""
    if any(value.type == "float" for value in values):
        return tuple(_float(value) for value in values)
    return values


def _joined(operator: str, parts: Sequence[Expr]) -> Expr:
    """``a and b and c`` in halves: its tree is as deep as the logarithm of its length."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    return Binary(operator, _joined(operator, parts[:half]), _joined(operator, parts[half:]))


def _is_int(node: ast.expr, value: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == value


def _count(number: int, noun: str) -> str:
    plural = {"index": "indices"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"
