"""A spec's captures, params, lets, mask and score -> its Body; errors point into the YAML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .body import AXES, Body, Capture, Param
from .errors import SpecError
from .expression import ExpressionError, Parsed, Scope, nearest, parse_expression
from .expression.operators import INT64, LOAD_TYPE
from .ir.nodes import Const, Expr, Name, Named, Type
from .spec_fields import CaptureFields, RuntimeParam, SpecFields
from .yaml_source import Document, Path


@dataclass(frozen=True, slots=True)
class _Declared:
    """What a spec declares for its expressions to read."""

    captures: tuple[Capture, ...]
    params: tuple[Param, ...]
    constants: tuple[tuple[str, int | float | bool], ...]
    used_by_dims: frozenset[str]  # constants

    @property
    def scope(self) -> Scope:
        return Scope.of(self.captures, self.params, self.constants)


def read_body(document: Document, fields: SpecFields) -> Body | None:
    """The program of a spec; None for one that leaves scores and mask as they are.

    Raises:
        SpecError: when a declaration or an expression is wrong, or one of them is never used;
            its message shows the line, and the characters at fault underlined.
    """
    declared = _declared(document, fields)
    scope = declared.scope
    for index, name in enumerate(fields.let):
        later = dict.fromkeys([*fields.let][index:], "a let reads only those above it")
        parsed = _parsed(document, ("let", name), replace(scope, refused=later), None)
        scope = scope.with_let(name, parsed.expr, parsed.type, parsed.used)
    mask = score = None
    if document.has(("mask",)):
        mask = _parsed(document, ("mask",), scope.of_mask(), "bool")
    if document.has(("score",)):
        score = _parsed(document, ("score",), scope, "float")
    used = frozenset[str]().union(*(part.used for part in (mask, score) if part))
    _check_used(document, fields, used | declared.used_by_dims)
    _check_gradients(document, declared, score.used if score else frozenset())
    body = Body(
        tuple(sorted((c for c in declared.captures if c.name in used), key=lambda c: c.name)),
        tuple(sorted((p for p in declared.params if p.name in used), key=lambda p: p.name)),
        _unless(mask, Const(True)),
        _unless(score, Name("score", "float")),
    )
    return body if body != Body() else None


def _unless(parsed: Parsed | None, neutral: Expr) -> Expr | None:
    """The expression, unless it only says what holds without it."""
    expr = parsed.expr if parsed else neutral
    inner = expr
    while isinstance(inner, Named):
        inner = inner.expr
    return None if inner == neutral else expr


def _parsed(document: Document, path: Path, scope: Scope, want: Type | None) -> Parsed:
    value = document.value_at(path)
    # YAML's true is Python's True
    text = str(value) if isinstance(value, bool) else document.scalar_text(path)
    try:
        return parse_expression(text, scope, want)
    except ExpressionError as error:
        where = ".".join(map(str, path))
        message = f"{where}: {error.message}"
        raise document.error_in(path, error.start, error.end, message) from None


def _declared(document: Document, fields: SpecFields) -> _Declared:
    params, constants = [], []
    for name, value in fields.params.items():
        if isinstance(value, RuntimeParam):
            params.append(Param(name, value.runtime))
        else:
            _check_constant(document, name, value)
            constants.append((name, value))
    used: set[str] = set()
    captures = []
    for name, capture in fields.captures.items():
        path = ("captures", name)
        if name in fields.params:
            raise document.error(
                document.key_mark(path),
                f"captures: expected a name of its own, got {name!r}, which a param has. "
                "Rename one.",
            )
        captures.append(_capture(document, path, capture, fields, used))
    _check_lets(document, fields)
    return _Declared(tuple(captures), tuple(params), tuple(constants), frozenset(used))


def _check_lets(document: Document, fields: SpecFields) -> None:
    for name in fields.let:
        for field, taken in (("capture", fields.captures), ("param", fields.params)):
            if name in taken:
                raise document.error(
                    document.key_mark(("let", name)),
                    f"let: expected a name of its own, got {name!r}, which a {field} has. "
                    "Rename one.",
                )


def _check_constant(document: Document, name: str, value: int | float | bool) -> None:
    finite = isinstance(value, int) or abs(value) < float("inf")  # a NaN compares false
    if not finite or (isinstance(value, int) and not -INT64 - 1 <= value <= INT64):
        raise document.error(
            document.value_mark(("params", name)),
            f"params.{name}: expected a finite number, an int of at most 64 bits, got {value}. "
            "Write another.",
        )


def _capture(
    document: Document, path: Path, fields: CaptureFields, spec: SpecFields, used: set[str]
) -> Capture:
    name = str(path[-1])
    dims = tuple(
        _dim(document, (*path, "dims", index), dim, spec, used)
        for index, dim in enumerate(fields.dims)
    )
    if fields.grad and LOAD_TYPE[fields.dtype] != "float":
        raise document.error(
            document.value_mark((*path, "grad")),
            f"captures.{name}.grad: expected a capture of fp16, bf16, fp32 or fp64, got "
            f"{fields.dtype}, which has no gradient. Remove grad, or change the dtype.",
        )
    return Capture(name, dims, fields.dtype, fields.grad)


def _dim(
    document: Document, path: Path, dim: int | str, spec: SpecFields, used: set[str]
) -> int | str:
    where = f"captures.{path[1]}.dims[{path[3]}]"
    if isinstance(dim, str) and dim not in AXES:
        constants = [name for name, v in spec.params.items() if not isinstance(v, RuntimeParam)]
        if dim in spec.params and dim not in constants:
            raise document.error(
                document.value_mark(path),
                f"{where}: expected a compile-time param, got {dim!r}, a run-time one. Give it a "
                "value, or use the size of the call.",
            )
        if dim not in constants:
            known = (*AXES, *constants)
            raise document.error(
                document.value_mark(path),
                f"{where}: expected a number or one of {', '.join(known)}, got {dim!r}."
                f"{nearest(dim, known)}",
            )
        used.add(dim)
        dim = _size(document, path, where, spec.params[dim])
    return _size(document, path, where, dim) if not isinstance(dim, str) else dim


def _size(document: Document, path: Path, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= INT64:
        raise document.error(
            document.value_mark(path),
            f"{where}: expected a positive integer, got {value}. Write another size.",
        )
    return value


def _check_used(document: Document, fields: SpecFields, used: frozenset[str]) -> None:
    """Refuse what no expression reads: it is a slip, or left over."""
    for field, kind in (("captures", "capture"), ("params", "param"), ("let", "let")):
        for name in getattr(fields, field):
            if name not in used:
                raise _unused(document, (field, name), kind, fields, used)


def _unused(
    document: Document, path: Path, kind: str, fields: SpecFields, used: Iterable[str]
) -> SpecError:
    name = str(path[1])
    if not document.has(("mask",)) and not document.has(("score",)):
        remedy = "Add 'mask:' or 'score:', or remove it."
    else:
        near = nearest(name, used)
        remedy = f"{near[1:]} Remove it, or use it." if near else "Remove it, or use it."
    return document.error(
        document.key_mark(path),
        f"{'.'.join(map(str, path))}: expected a {kind} that mask or score reads, got {name!r}, "
        f"which neither does. {remedy}",
    )


def _check_gradients(
    document: Document, declared: _Declared, read_by_score: frozenset[str]
) -> None:
    for capture in declared.captures:
        if not capture.grad:
            continue
        where = f"captures.{capture.name}.grad"
        mark = document.value_mark(("captures", capture.name, "grad"))
        if capture.name not in read_by_score:
            raise document.error(
                mark,
                f"{where}: expected a capture that score reads, got {capture.name!r}, which only "
                "mask does: a mask has no gradient. Remove grad.",
            )
        if any(other.name == f"d{capture.name}" for other in declared.captures):
            raise document.error(
                mark,
                f"{where}: expected its gradient's name, d{capture.name}, to be free, got another "
                "capture of that name. Rename one.",
            )
