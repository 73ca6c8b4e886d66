"""Conjuncts of a mask -> the band of diagonals that some of them are, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir import Binary, Const, Expr, Name, Unary, binary, call, compare_all, to_text, type_of
from ..ir.build import NEGATED
from ..ir.graph import Graph
from ..ir.types import children, plain, walk
from .data import Band

POSITIONS = ("q_idx", "kv_idx")


@dataclass(frozen=True, slots=True)
class Linear:
    """q * q_idx + kv * kv_idx + rest, with a rest that depends on the head alone."""

    q: int
    kv: int
    rest: Expr


@dataclass(frozen=True, slots=True)
class Limit:
    """What a comparison says of positions: q * q_idx + kv * kv_idx + rest <= 0.

    Attributes:
        form: the left side.
        bound: -rest, simplified.
    """

    form: Linear
    bound: Expr


def split_band(conjuncts: Sequence[Expr], graph: Graph) -> tuple[Band, Expr | None]:
    """The band that ``conjuncts`` hold, and the ``and`` of those that it does not."""
    lower: list[Expr] = []
    upper: list[Expr] = []
    rest = []
    for conjunct in flatten(conjuncts):
        limits = limits_of(conjunct, graph)
        if limits is None or any((x.form.q, x.form.kv) not in ((1, -1), (-1, 1)) for x in limits):
            rest.append(conjunct)
            continue
        for limit in limits:
            if limit.form.kv == 1:  # kv_idx - q_idx <= -rest
                upper.append(limit.bound)
            else:  # rest <= kv_idx - q_idx
                lower.append(limit.form.rest)
    return Band(_tightest("max", lower), _tightest("min", upper)), compare_all(rest)


def flatten(conjuncts: Sequence[Expr]) -> list[Expr]:
    """``conjuncts`` with every ``and`` below them taken apart, lets included."""
    found: list[Expr] = []
    pending = list(reversed(conjuncts))
    while pending:
        conjunct = plain(pending.pop())
        if isinstance(conjunct, Binary) and conjunct.op == "and":
            pending += [conjunct.right, conjunct.left]
        elif isinstance(conjunct, Unary) and _negated_or(conjunct):
            inner = plain(conjunct.operand)
            pending += [Unary("not", part) for part in reversed(children(inner))]
        else:
            found.append(conjunct)
    return found


def _negated_or(conjunct: Unary) -> bool:
    inner = plain(conjunct.operand)
    return conjunct.op == "not" and isinstance(inner, Binary) and inner.op == "or"


def _tightest(function: str, bounds: list[Expr]) -> Expr | None:
    if not bounds:
        return None
    result = bounds[0]
    for bound in bounds[1:]:
        nearer = _nearer(function, result, bound)
        result = call(function, result, bound) if nearer is None else nearer
    return result


def _nearer(function: str, a: Expr, b: Expr) -> Expr | None:
    """The ``min`` or ``max`` of two sums that differ by a constant; None where they don't."""
    (terms_a, constant_a), (terms_b, constant_b) = _terms(a), _terms(b)
    if terms_a != terms_b:
        return None
    return a if (constant_a < constant_b) is (function == "min") else b


def _terms(expr: Expr) -> tuple[dict[str, int], int]:
    """A sum of ints as the coefficient of each term, by its text, and a constant."""
    terms: dict[str, int] = {}
    constant = 0
    pending = [(expr, 1)]
    while pending:
        node, sign = pending.pop()
        node = plain(node)
        if isinstance(node, Const):
            constant += sign * int(node.value)
        elif isinstance(node, Unary) and node.op == "-":
            pending.append((node.operand, -sign))
        elif isinstance(node, Binary) and node.op in ("+", "-"):
            pending += [(node.left, sign), (node.right, sign if node.op == "+" else -sign)]
        else:
            text = to_text(node)
            terms[text] = terms.get(text, 0) + sign
    return {text: count for text, count in terms.items() if count}, constant


def limits_of(conjunct: Expr, graph: Graph) -> tuple[Limit, ...] | None:
    """The limits whose ``and`` is ``conjunct``; None where it is no linear comparison of ints."""
    conjunct = plain(conjunct)
    negated = isinstance(conjunct, Unary) and conjunct.op == "not"
    if isinstance(conjunct, Unary) and negated:
        conjunct = plain(conjunct.operand)
    if not isinstance(conjunct, Binary) or conjunct.op not in NEGATED:
        return None
    op = NEGATED[conjunct.op] if negated else conjunct.op
    if op == "!=" or "float" in (type_of(conjunct.left), type_of(conjunct.right)):
        return None
    left, right = (linear(part, graph) for part in (conjunct.left, conjunct.right))
    if left is None or right is None:
        return None
    below, above = _minus(left, right), _minus(right, left)
    if any(graph.add(form.rest).bounds.wraps for form in (below, above)):
        return None
    if op == "==":
        return Limit(below, above.rest), Limit(above, below.rest)
    form, other = (above, below) if op in (">", ">=") else (below, above)
    if op in ("<", ">"):
        form = Linear(form.q, form.kv, binary("+", form.rest, Const(1)))
        other = Linear(other.q, other.kv, binary("-", other.rest, Const(1)))
    return (Limit(form, other.rest),)


def linear(expr: Expr, graph: Graph) -> Linear | None:
    """``expr`` as a sum of positions and a rest; None where it is none, or could overflow."""
    done: dict[int, Linear | None] = {}
    for node in walk(expr):
        parts = [done[id(part)] for part in children(node)]
        found = _linear_node(node, parts)
        # a sum that wraps is not what it says
        wraps = found is not None and (found.q or found.kv) and graph.add(node).bounds.wraps
        done[id(node)] = None if wraps else found
    return done[id(expr)]


def _linear_node(node: Expr, parts: Sequence[Linear | None]) -> Linear | None:
    if isinstance(node, Name) and node.id in POSITIONS:
        return Linear(int(node.id == "q_idx"), int(node.id == "kv_idx"), Const(0))
    if plain(node) is not node:
        return parts[0]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts) and all(part.q == part.kv == 0 for part in known):
        return None if _reads_score(node) else Linear(0, 0, node)
    if len(known) != len(parts):
        return None
    if isinstance(node, Binary) and node.op == "+":
        return _plus(known[0], known[1])
    if isinstance(node, Binary) and node.op == "-":
        return _minus(known[0], known[1])
    if isinstance(node, Unary) and node.op == "-":
        return _minus(Linear(0, 0, Const(0)), known[0])
    return None


def _reads_score(node: Expr) -> bool:
    return isinstance(node, Name) and node.id in ("score", "dscore")


def _plus(a: Linear, b: Linear) -> Linear:
    return Linear(a.q + b.q, a.kv + b.kv, binary("+", a.rest, b.rest))


def _minus(a: Linear, b: Linear) -> Linear:
    return Linear(a.q - b.q, a.kv - b.kv, binary("-", a.rest, b.rest))
