"""Expression -> the language of the specs, for comments, messages and `flashgen explain`."""

from __future__ import annotations

from .nodes import Binary, Const, Expr, Load, Name, Named, Select, Unary

PRECEDENCE = {
    "if": 0, "or": 1, "and": 2, "not": 3,
    "<": 4, "<=": 4, ">": 4, ">=": 4, "==": 4, "!=": 4,
    "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, "+": 9, "-": 9,
    "*": 10, "/": 10, "//": 10, "%": 10, "neg": 11,
}  # fmt: skip


def to_text(expr: Expr, *, lets: bool = False) -> str:
    """``expr`` in the language of the specs, parentheses only where needed.

    Args:
        expr: what to print.
        lets: print the name of a ``let`` in place of what it stands for.
    """
    return _print(expr, 0, lets)


def _print(expr: Expr, outer: int, lets: bool) -> str:
    if isinstance(expr, Const):
        text = repr(expr.value)
        if text in ("inf", "-inf", "nan"):
            return f"float('{text}')"
        return f"({text})" if text.startswith("-") and outer > PRECEDENCE["neg"] else text
    if isinstance(expr, Name):
        return expr.id
    if isinstance(expr, Named):
        return expr.id if lets else _print(expr.expr, outer, lets)
    if isinstance(expr, Load):
        if not expr.index:
            return expr.capture
        return f"{expr.capture}[{', '.join(_print(i, 0, lets) for i in expr.index)}]"
    if isinstance(expr, Unary | Binary | Select):
        text, inner = _operator(expr, lets)
        return f"({text})" if inner < outer else text
    return f"{expr.function}({', '.join(_print(arg, 0, lets) for arg in expr.args)})"


def _operator(expr: Unary | Binary | Select, lets: bool) -> tuple[str, int]:
    """The text of an operator and how tightly it binds."""
    if isinstance(expr, Unary):
        inner = PRECEDENCE["not" if expr.op == "not" else "neg"]
        return f"{expr.op}{' ' * (expr.op == 'not')}{_print(expr.operand, inner, lets)}", inner
    if isinstance(expr, Select):
        then, condition = (_print(part, 1, lets) for part in (expr.then, expr.condition))
        return f"{then} if {condition} else {_print(expr.otherwise, 0, lets)}", 0
    inner = PRECEDENCE[expr.op]
    # Python chains comparisons, so one inside another needs parentheses on both sides
    left = _print(expr.left, inner + (inner == PRECEDENCE["<"]), lets)
    return f"{left} {expr.op} {_print(expr.right, inner + 1, lets)}", inner
