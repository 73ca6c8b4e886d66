"""Graph of a program -> C++ statements: what is shared gets a name, what repeats is hoisted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..ir.cpp import PRIMARY, Accumulator, Text, cast, print_node, type_in_cpp
from ..ir.cpp_names import cpp_name
from ..ir.graph import COLUMN, ELEMENT, HEAD, ROW, Graph, Node
from ..ir.nodes import INDEX_NAMES, Binary, Call, Const, Expr, Load, Name
from .data import Function, ProgramCapture

STRUCTS = {HEAD: "head", ROW: "row", COLUMN: "column"}
HOIST_COST = 6
"""Instructions from which a value is worth a register: a load or a division, not a sum."""
_SHORT = {"q_idx": "q", "kv_idx": "kv", "h_kv": "hkv", "q_len": "q_len", "kv_len": "kv_len"}
_LOADED = {"bool": "bool", "int32": "int", "int64": "int64_t", "fp64": "double"}


@dataclass(frozen=True, slots=True)
class Emitter:
    """Prints functions over the nodes of one program.

    Attributes:
        graph: the nodes.
        captures: by name.
        accumulator: the type of float arithmetic.
        members: which struct, by level, holds the value of a node.
        variables: the name that each node has wherever it is a variable or a member.
    """

    graph: Graph
    captures: Mapping[str, ProgramCapture]
    accumulator: Accumulator
    members: dict[int, int]
    variables: dict[int, str]

    def hoist(self, roots: Iterable[Expr]) -> None:
        """Makes members of what ``roots`` need and does not depend on the element."""
        pending = [self.graph.add(root) for root in roots]
        while pending:
            node = pending.pop()
            if node.number in self.members:
                continue
            if node.level in STRUCTS and node.cost >= HOIST_COST:
                self.members[node.number] = node.level
                self.name(node)
            pending += self.graph.parts(node)
        # a member inside a member of its own level is a variable there, if anything
        used = self._used_outside(roots)
        for number in [n for n in self.members if n not in used]:
            del self.members[number]

    def _used_outside(self, roots: Iterable[Expr]) -> set[int]:
        """Members that some function reads other than the one that sets them."""
        found: set[int] = set()
        pending = [(self.graph.add(root), ELEMENT) for root in roots]
        seen: set[tuple[int, int]] = set()
        while pending:
            node, level = pending.pop()
            if (node.number, level) in seen:
                continue
            seen.add((node.number, level))
            if self.members.get(node.number, level) != level:
                found.add(node.number)
                level = node.level
            pending += [(part, level) for part in self.graph.parts(node)]
        return found

    def name(self, node: Node) -> str:
        """The variable of ``node``: a let's name, or one that says what it is."""
        if node.number not in self.variables:
            wanted = cpp_name(self.graph.names.get(node.number) or self._describe(node))
            taken = set(self.variables.values())
            name, count = wanted, 2
            while name in taken:
                name, count = f"{wanted}_{count}", count + 1
            self.variables[node.number] = name
        return self.variables[node.number]

    def _describe(self, node: Node) -> str:
        expr = node.expr
        if isinstance(expr, Load):
            parts = list(self.graph.parts(node))
            names = [p.expr.id for p in parts if isinstance(p.expr, Name)]
            if len(names) != len(parts) or not names:
                return f"{expr.capture}_at" if parts else f"{expr.capture}_value"
            return f"{expr.capture}_{''.join(_SHORT.get(n, n) for n in names)}"
        parts = [p for p in self.graph.parts(node) if not isinstance(p.expr, Const)]
        if isinstance(expr, Binary) and expr.op == "/" and len(parts) == 1:
            return f"inverse_{self.name(parts[0]) if parts[0].parts else _leaf(parts[0])}"
        if isinstance(expr, Call) and parts:
            inner = parts[0].expr
            if expr.function in ("float", "clamp") and isinstance(inner, Name):
                return inner.id
            return f"{expr.function}_{inner.id}" if isinstance(inner, Name) else expr.function
        return {"bool": "holds", "int": "index", "float": "value"}[node.type]

    def function(
        self, roots: Iterable[Expr], result: Callable[[tuple[Text, ...]], str]
    ) -> Function:
        """A hook over an element: statements, then ``result`` of the texts of ``roots``."""
        scope = Scope(self, ELEMENT)
        nodes = tuple(self.graph.add(root) for root in roots)
        texts = scope.print(nodes)
        return Function(tuple(scope.statements), result(texts))

    def setters(
        self, level: int, extra: Iterable[Expr] = ()
    ) -> tuple[tuple[str, ...], tuple[Text, ...]]:
        """The statements that set the members of a struct, and the texts of ``extra`` there."""
        scope = Scope(self, level)
        numbers = sorted(n for n, at in self.members.items() if at == level)
        others = tuple(self.graph.add(root) for root in extra)
        nodes = tuple(self.graph.nodes[number] for number in numbers)
        texts = scope.print((*nodes, *others))
        return tuple(scope.statements), texts[len(numbers) :]


def _leaf(node: Node) -> str:
    return node.expr.id if isinstance(node.expr, Name) else "value"


class Scope:
    """One function being printed: what has a text, and the statements so far.

    Attributes:
        statements: in order.
    """

    def __init__(self, emitter: Emitter, level: int) -> None:
        self.statements: list[str] = []
        self._emitter = emitter
        self._level = level
        self._texts: dict[int, Text] = {}
        self._fresh: Counter[str] = Counter()

    def fresh(self, name: str) -> str:
        """``name``, numbered where this function has it already."""
        count = self._fresh[name] = self._fresh[name] + 1
        return name if count == 1 else f"{name}_{count}"

    def print(self, roots: tuple[Node, ...]) -> tuple[Text, ...]:
        """The texts of ``roots``, in terms of the statements made for them."""
        uses, order = self._uses(roots)
        for node in order:
            text = self._print(node)
            emitter = self._emitter
            if emitter.members.get(node.number) == self._level:
                name = f"{STRUCTS[self._level]}.{emitter.name(node)}"
                self.statements.append(f"{name} = {text.text};")
                text = Text(name, PRIMARY, text.type)
            elif self._is_variable(node, uses[node.number]):
                name = emitter.name(node)
                kind = type_in_cpp(node)
                self.statements.append(f"const {kind} {name} = {cast(text, kind).text};")
                text = Text(name, PRIMARY, kind)
            self._texts[node.number] = text
        return tuple(self._texts[node.number] for node in roots)

    def _is_variable(self, node: Node, uses: int) -> bool:
        if node.cost == 0 or self._is_member(node):
            return False
        return uses > 1 or node.number in self._emitter.graph.names

    def _is_member(self, node: Node) -> bool:
        return self._emitter.members.get(node.number, self._level) != self._level

    def _uses(self, roots: tuple[Node, ...]) -> tuple[Counter[int], list[Node]]:
        """How often each node that this function computes is read, and their order."""
        uses: Counter[int] = Counter(node.number for node in roots)
        pending, seen = list(roots), set()
        while pending:
            node = pending.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            if self._is_member(node):
                continue
            for part in self._emitter.graph.parts(node):
                uses[part.number] += 1
                pending.append(part)
        missing = seen - self._texts.keys()
        return uses, [self._emitter.graph.nodes[number] for number in sorted(missing)]

    def _print(self, node: Node) -> Text:
        emitter, expr = self._emitter, node.expr
        if self._is_member(node):
            struct = STRUCTS[emitter.members[node.number]]
            return Text(f"{struct}.{emitter.name(node)}", PRIMARY, type_in_cpp(node))
        if isinstance(expr, Name):
            return Text(self._spell(expr), PRIMARY, type_in_cpp(node))
        parts = tuple(self._texts[part] for part in node.parts)
        if isinstance(expr, Load):
            return self._print_load(expr, node, parts)
        return print_node(node, emitter.graph.parts(node), parts, emitter.accumulator)

    def _spell(self, name: Name) -> str:
        if name.id in ("q_idx", "kv_idx", "score", "dscore"):
            return name.id
        if name.id in INDEX_NAMES:
            return name.id if self._level == HEAD else f"head.{name.id}"
        return f"args.{cpp_name(name.id)}"

    def _print_load(self, expr: Load, node: Node, parts: tuple[Text, ...]) -> Text:
        emitter = self._emitter
        capture = emitter.captures[expr.capture]
        index = self.index(capture, parts)
        text = Text(f"args.{capture.cpp_name}.load({index})", PRIMARY, "")
        loaded = _LOADED.get(capture.dtype, "float")
        if node.type == "float" and loaded != emitter.accumulator:
            return cast(text, "Acc")
        return Text(text.text, PRIMARY, type_in_cpp(node))

    def index(self, capture: ProgramCapture, parts: tuple[Text, ...]) -> str:
        """The arguments of ``load`` or ``place``: positions in packed tokens get their start."""
        found = []
        for dim, part in zip(capture.dims, parts, strict=True):
            side = {"total_q": "q", "total_k": "kv"}.get(str(dim))
            if side is None:
                found.append(part.text)
            else:
                head = "" if self._level == HEAD else "head."
                found.append(f"within({part.text}, {head}{side}_len, {head}{side}_start)")
        return ", ".join(found)


def print_place(emitter: Emitter, site: Load) -> Function:
    """The body of site_index: the entry's place in the capture's contiguous gradient."""
    scope = Scope(emitter, ELEMENT)
    capture = emitter.captures[site.capture]
    texts = scope.print(tuple(emitter.graph.add(index) for index in site.index))
    place = f"args.{capture.cpp_name}.place({scope.index(capture, texts)})"
    return Function(tuple(scope.statements), place)
