"""Score, mask and band -> the bodies of the rendered hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir import Const, Expr, Load, Name, walk
from ..ir.cpp import Accumulator, Text, cast, type_in_cpp
from ..ir.gradient import derivatives
from ..ir.graph import COLUMN, HEAD, ROW, Graph
from ..ir.ranges import DTYPES, FULL, MAX_SEQLEN, Bounds
from .data import Band, Function, GradientSite, LevelName, Member, ProgramCapture
from .emit import Emitter, print_place
from .fast import quick

LEVEL_NAMES: dict[int, LevelName] = {HEAD: "head", ROW: "row", COLUMN: "column"}
DSCORE = Name("dscore", "float")
MAX_INLINE_NODES = 5  # kv_len - q_len + 4096
MAX_SHIFT = 2**20  # how far from the diagonal a bound may be that is added to positions as it is


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the partials print.

    Attributes:
        head: members of Head beyond the indices, and the statements that set them.
        row: of Row.
        column: of Column.
        mask: the body of mask_mod; None where every key is visible.
        score: the body of score_mod; None where the score stays.
        gradient: the body of score_gradient; None where the score stays.
        site_index: the body of each site_index, in the order of the sites.
        lower: the band's lower bound as C++ over ``head``; None where open.
        upper: the upper bound.
        classify: the body of classify_tile; None where the band is all of the mask.
    """

    head: Struct
    row: Struct
    column: Struct
    mask: Function | None
    score: Function | None
    gradient: Function | None
    site_index: tuple[Function, ...]
    lower: str | None
    upper: str | None
    classify: Function | None = None


@dataclass(frozen=True, slots=True)
class Struct:
    """Hoisted values of one level."""

    level: int
    members: tuple[Member, ...]
    statements: tuple[str, ...]

    @property
    def variable(self) -> str:
        """What the hooks call it."""
        return LEVEL_NAMES[self.level]

    @property
    def name(self) -> str:
        """Its type."""
        return self.variable.title()

    @property
    def position(self) -> str:
        """The position that it is made for; of a row or column."""
        return "q_idx" if self.level == ROW else "kv_idx"

    @property
    def side(self) -> str:
        """The same in words."""
        return "query" if self.level == ROW else "key"

    @property
    def reads_args(self) -> bool:
        """Whether a statement reads a capture or a run-time param."""
        return any("args." in statement for statement in self.statements)


@dataclass(frozen=True, slots=True)
class Gradient:
    """The derivative of a score.

    Attributes:
        score: dscore times its derivative by ``score``.
        loads: each place that reads a capture with a gradient, with dscore times the derivative.
    """

    score: Expr
    loads: tuple[tuple[Load, Expr], ...]


def gradient_of(score: Expr, captures: Mapping[str, ProgramCapture]) -> Gradient:
    """The derivatives of ``score`` by ``score`` and by every load of a capture with a gradient."""
    sites: dict[str, Load] = {}
    for node in walk(score):
        if isinstance(node, Load) and captures[node.capture].grad:
            sites.setdefault(repr(node), node)
    loads = tuple(sites.values())
    zero = Const(0.0)
    by_score, *by_loads = derivatives(score, DSCORE, (Name("score", "float"), *loads))
    pairs = tuple((load, found or zero) for load, found in zip(loads, by_loads, strict=True))
    return Gradient(by_score or zero, pairs)


def new_emitter(captures: Mapping[str, ProgramCapture], accumulator: Accumulator) -> Emitter:
    """An emitter over an empty graph."""

    def load_range(capture: str) -> Bounds:
        return DTYPES.get(captures[capture].dtype, FULL)

    return Emitter(Graph(load_range), captures, accumulator, {}, {})


def sites_of(emitter: Emitter, gradient: Gradient | None) -> tuple[GradientSite, ...]:
    """A site for each load with a gradient, named after it."""
    found = []
    for load, _ in gradient.loads if gradient is not None else ():
        level = 0
        for index in load.index:
            level |= emitter.graph.add(index).level
        name = emitter.name(emitter.graph.add(load))
        level_name = LEVEL_NAMES.get(level, "element")
        found.append(GradientSite(name, emitter.captures[load.capture], level_name))
    return tuple(found)


def hooks_for(
    emitter: Emitter,
    mask: Expr | None,
    score: Expr | None,
    gradient: Gradient | None,
    band: Band,
) -> Hooks:
    """The bodies of every hook of a program."""
    graph = emitter.graph
    mask = quick(mask, graph) if mask is not None else None
    score = quick(score, graph) if score is not None else None
    if gradient is not None:
        terms = tuple((load, quick(value, graph)) for load, value in gradient.loads)
        gradient = Gradient(quick(gradient.score, graph), terms)
    loads = gradient.loads if gradient is not None else ()
    roots = [root for root in (mask, score) if root is not None]
    if gradient is not None:
        roots += [gradient.score, *(value for _, value in loads)]
    roots += [index for load, _ in loads for index in load.index]
    emitter.hoist(roots)
    inline = {side: _inline_bound(emitter, bound) for side, bound in band.sides}
    hoisted = [(side, bound) for side, bound in band.sides if inline[side] is None]
    texts = {side: inline[side] or f"head.band_{side}" for side, _ in band.sides}
    return Hooks(
        _struct(emitter, HEAD, hoisted),
        _struct(emitter, ROW),
        _struct(emitter, COLUMN),
        _value(emitter, mask, "bool"),
        _value(emitter, score, "Acc"),
        _gradient(emitter, gradient),
        tuple(print_place(emitter, load) for load, _ in loads),
        texts.get("lower"),
        texts.get("upper"),
    )


def _value(emitter: Emitter, root: Expr | None, kind: str) -> Function | None:
    if root is None:
        return None
    return emitter.function([root], lambda texts: cast(texts[0], kind).text)


def _gradient(emitter: Emitter, gradient: Gradient | None) -> Function | None:
    if gradient is None:
        return None
    names = [emitter.name(emitter.graph.add(load)) for load, _ in gradient.loads]
    roots = [value for _, value in gradient.loads]
    lines: list[str] = []

    def result(texts: tuple[Text, ...]) -> str:
        for name, text in zip(names, texts[:-1], strict=True):
            lines.append(f"sites.{name} = {text.text};")
        return texts[-1].text

    body = emitter.function([*roots, gradient.score], result)
    return Function((*body.statements, *lines), body.result)


def _struct(emitter: Emitter, level: int, bounds: Sequence[tuple[str, Expr]] = ()) -> Struct:
    """The struct of a level; for Head with the sides of the band that no sum of sizes gives."""
    numbers = sorted(n for n, at in emitter.members.items() if at == level)
    nodes = [emitter.graph.nodes[number] for number in numbers]
    members = [Member(type_in_cpp(node), emitter.name(node)) for node in nodes]
    statements, texts = emitter.setters(level, [bound for _, bound in bounds])
    sides = [
        f"head.band_{side} = {side}_distance({text.text});"
        for (side, _), text in zip(bounds, texts, strict=True)
    ]
    members += [Member("int", f"band_{side}") for side, _ in bounds]
    return Struct(level, tuple(members), (*statements, *sides))


def _inline_bound(emitter: Emitter, bound: Expr) -> str | None:
    """The text of a bound that is a plain sum of sizes; None where Head had better hold it."""
    nodes = list(walk(bound))
    names = {node.id for node in nodes if isinstance(node, Name)}
    reads = not names <= {"q_len", "kv_len"} or any(isinstance(node, Load) for node in nodes)
    found = emitter.graph.add(bound).bounds
    far = max(abs(found.low), abs(found.high)) > MAX_SEQLEN + MAX_SHIFT
    if reads or far or len(nodes) > MAX_INLINE_NODES:
        return None
    body = emitter.function([bound], lambda texts: texts[0].text)
    return None if body.statements else body.result
