"""Random well-typed programs of the variant language, with captures and params, for any test."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

from flashgen.generator.body import Body, Capture, Param
from flashgen.generator.ir import (
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
    walk,
)

CAPTURES = (
    Capture("bias", ("num_heads", "seqlen_q", "seqlen_k"), "fp32", grad=True),
    Capture("doc", ("seqlen_k",), "int32"),
    Capture("prefix", ("batch",), "int64"),
    Capture("slope", ("num_heads",), "fp32", grad=True),
    Capture("table", (9,), "fp32", grad=True),
    Capture("temperature", (), "fp32", grad=True),
    Capture("valid", ("batch", "seqlen_k"), "bool"),
    Capture("weight", ("seqlen_k",), "fp32", grad=True),
)
"""Every capture that a random program may read; ``doc`` and ``weight`` by q_idx too."""
PARAMS = (Param("W", "int"), Param("cap", "float"))
SCORE = Name("score", "float")
Q, KV = Name("q_idx"), Name("kv_idx")
_BY_NAME = {capture.name: capture for capture in CAPTURES}
_SMALL = (-3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 33)
_REALS = (-2.0, -1.5, -0.75, -0.3, 0.0, 0.1, 0.25, 0.5, 1.0, 1.7, 2.0, 3.0)


def random_program(rng: random.Random, *, depth: int = 4, sites: bool = True) -> Body:
    """A body with a mask, a score or both, whose captures and params are those that it reads.

    Args:
        rng: where the choices come from.
        depth: of the expressions, about.
        sites: whether the score may read captures with a gradient.
    """
    draw = _Draw(rng, sites)
    kinds = rng.choice(("mask", "score", "both", "both"))
    lets = [draw.let(index, depth) for index in range(rng.randrange(3))]
    mask = draw.condition(depth, masks=True) if kinds != "score" else None
    score: Expr | None = None
    if kinds != "mask":
        score = draw.scored(depth)
    roots = [root for root in (mask, score) if root is not None]
    del lets
    nodes = list(walk(*roots))
    captures = {node.capture for node in nodes if isinstance(node, Load)}
    names = {node.id for node in nodes if isinstance(node, Name)}
    return Body(
        tuple(c for c in CAPTURES if c.name in captures),
        tuple(p for p in PARAMS if p.name in names),
        mask,
        score,
    )


def bodies(*, depth: int = 4) -> st.SearchStrategy[Body]:
    """Random programs as a hypothesis strategy."""
    return st.randoms(use_true_random=False).map(lambda rng: random_program(rng, depth=depth))


def conditions(*, depth: int = 4) -> st.SearchStrategy[Expr]:
    """Random masks."""
    return st.randoms(use_true_random=False).map(
        lambda rng: _Draw(rng, False).condition(depth, masks=True)
    )


class _Draw:
    """Draws expressions by type."""

    def __init__(self, rng: random.Random, sites: bool) -> None:
        self.rng = rng
        self.sites = sites
        self.lets: dict[Type, list[Expr]] = {"bool": [], "int": [], "float": []}
        self.masks = False

    def let(self, index: int, depth: int) -> Expr:
        kind: Type = self.rng.choice(("int", "int", "bool"))
        named = Named(f"let_{index}", self.draw(kind, depth - 1))
        self.lets[kind].append(named)
        return named

    def draw(self, kind: Type, depth: int) -> Expr:
        if self.lets[kind] and self.rng.random() < 0.15:
            return self.rng.choice(self.lets[kind])
        makers: dict[Type, Callable[[int], Expr]] = {
            "bool": self.condition,
            "int": self.integer,
            "float": self.real,
        }
        return makers[kind](depth)

    def condition(self, depth: int, masks: bool | None = None) -> Expr:
        if masks is not None:
            self.masks = masks
        rng = self.rng
        roll = rng.random()
        if depth <= 1 or roll < 0.4:
            return self._comparison(depth)
        if roll < 0.75:
            op = rng.choice(("and", "or"))
            return Binary(op, self.draw("bool", depth - 1), self.draw("bool", depth - 1))
        if roll < 0.82:
            return Unary("not", self.draw("bool", depth - 1))
        if roll < 0.88:
            return Load("valid", (Name("b"), KV), "bool")
        if roll < 0.93:
            op = rng.choice(("==", "!=", "&", "|", "^"))
            return Binary(op, self.draw("bool", depth - 1), self.draw("bool", depth - 1))
        parts = (self.draw("bool", depth - 1) for _ in range(3))
        return Select(*parts)

    def _comparison(self, depth: int) -> Expr:
        rng = self.rng
        op = rng.choice(("<", "<=", ">", ">=", "==", "!="))
        if rng.random() < 0.3:
            return Binary(op, rng.choice((Q, KV)), self._edge())
        if rng.random() < 0.3:
            return Binary(op, Binary("-", Q, KV), self._edge())
        if rng.random() < 0.2:
            return Binary("==", Load("doc", (Q,), "int"), Load("doc", (KV,), "int"))
        kind: Type = "int" if self.masks and rng.random() < 0.8 else "float"
        return Binary(op, self.draw(kind, depth - 1), self.draw(kind, depth - 1))

    def _edge(self) -> Expr:
        """Something that depends on the head alone."""
        rng = self.rng
        shift = Binary("-", Name("kv_len"), Name("q_len"))
        choices = (Const(rng.choice(_SMALL)), Name("W"), Load("prefix", (Name("b"),), "int"), shift)
        return rng.choice(choices)

    def integer(self, depth: int) -> Expr:
        rng = self.rng
        roll = rng.random()
        if depth <= 1 or roll < 0.25:
            names = ("b", "h", "h_kv", "q_idx", "kv_idx", "q_idx", "kv_idx", "q_len", "kv_len",
                     "num_heads", "W")  # fmt: skip
            return Name(rng.choice(names)) if rng.random() < 0.7 else Const(rng.choice(_SMALL))
        if roll < 0.7:
            op = rng.choice(("+", "-", "*", "//", "%", "//", "%", "&", "|", "^", "<<", ">>"))
            right = self.draw("int", depth - 1)
            if op in ("//", "%", "<<", ">>") and rng.random() < 0.6:
                right = Const(rng.choice(_SMALL))
            return Binary(op, self.draw("int", depth - 1), right)
        if roll < 0.8:
            return self._choice("int", depth)
        if roll < 0.88:
            return Load("doc", (rng.choice((Q, KV)),), "int")
        if roll < 0.93:
            return Unary("-", self.draw("int", depth - 1))
        if roll < 0.96:
            return Call(rng.choice(("int", "floor")), (self._calm(depth - 1),))
        return Select(*(self.draw(kind, depth - 1) for kind in ("bool", "int", "int")))

    def _choice(self, kind: Type, depth: int) -> Expr:
        function = self.rng.choice(("abs", "min", "max", "clamp", "min", "max"))
        count = {"abs": 1, "clamp": 3}.get(function, 2)
        return Call(function, tuple(self.draw(kind, depth - 1) for _ in range(count)))

    def _calm(self, depth: int) -> Expr:
        """A float that no rounding moves across an integer: half of an int and a quarter."""
        half = Binary("/", self.draw("int", depth), Const(2))
        return Binary("+", half, Const(0.25))

    def _load(self) -> Expr:
        rng = self.rng
        if not self.sites:
            return Name("cap", "float")
        name = rng.choice(("bias", "slope", "table", "temperature", "weight", "weight"))
        index: dict[str, tuple[Expr, ...]] = {
            "bias": (Name("h"), Q, KV),
            "slope": (Name("h"),),
            "table": (rng.choice((Binary("-", Q, KV), Name("b"), Binary("%", KV, Const(4)))),),
            "temperature": (),
            "weight": (rng.choice((Q, KV)),),
        }
        return Load(name, index[name], "float")

    def real(self, depth: int) -> Expr:
        rng = self.rng
        roll = rng.random()
        if depth <= 1 or roll < 0.2:
            leaves = (Const(rng.choice(_REALS)), Name("cap", "float"), self._load(), self._load())
            return rng.choice(leaves)
        if roll < 0.6:
            op = rng.choice(("+", "-", "*", "/", "+", "-", "*"))
            kind: Type = rng.choice(("float", "float", "int"))
            return Binary(op, self.draw("float", depth - 1), self.draw(kind, depth - 1))
        if roll < 0.75:
            function = rng.choice(("tanh", "sigmoid", "sin", "cos", "tanh"))
            return Call(function, (self.draw("float", depth - 1),))
        if roll < 0.85:
            return self._positive(depth)
        if roll < 0.92:
            return self._choice("float", depth)
        return Select(self.draw("bool", depth - 1), *(self.real(depth - 1) for _ in range(2)))

    def _positive(self, depth: int) -> Expr:
        """A function of a float that its domain holds."""
        inner = Call("abs", (self.draw("float", depth - 1),))
        function = self.rng.choice(("exp", "exp2", "log", "log2", "sqrt", "rsqrt"))
        if function in ("exp", "exp2"):
            return Call(function, (Unary("-", inner),))
        return Call(function, (Binary("+", inner, Const(0.5)),))

    def scored(self, depth: int) -> Expr:
        """A score: of ``score`` mostly, tame enough for a softmax."""
        rng = self.rng
        term = self.draw("float", depth)
        if rng.random() < 0.1:
            return term  # ignores the score
        tamed = Call("tanh", (term,))
        shapes: tuple[Callable[[], Expr], ...] = (
            lambda: Binary("+", SCORE, tamed),
            lambda: Binary("*", SCORE, Binary("+", Const(1.0), Call("sigmoid", (term,)))),
            lambda: Binary("*", Const(5.0), Call("tanh", (Binary("/", SCORE, Const(5.0)),))),
            lambda: Select(self.draw("bool", depth - 1), SCORE, Binary("-", SCORE, tamed)),
            lambda: Call("max", (Binary("*", SCORE, Const(0.5)), Binary("+", SCORE, tamed))),
        )
        return rng.choice(shapes)()
