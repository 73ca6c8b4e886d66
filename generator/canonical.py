"""Body -> the canonical text that its part of a key is the hash of.

Lets are written out, so their names are free. The names of captures and run-time params are in
it: a call gives them. The text is stable: a change of it changes keys that people have stored.
"""

from __future__ import annotations

from .body import Body
from .ir.nodes import Binary, Call, Const, Expr, Load, Name, Named, Select, Unary

HASH_CHARS = 8


def body_hash(body: Body) -> str:
    """The first hex digits of the SHA-256 of the body's canonical text."""
    import hashlib  # here: it loads OpenSSL, which specs without bodies can do without

    return hashlib.sha256(canonical_text(body).encode()).hexdigest()[:HASH_CHARS]


def canonical_text(body: Body) -> str:
    """One line for each capture, param and expression that makes ``body`` what it is."""
    lines = [
        f"capture {c.name} [{' '.join(map(str, c.dims))}] {c.dtype}{' grad' if c.grad else ''}"
        for c in sorted(body.captures, key=lambda c: c.name)
    ]
    lines += [f"param {p.name} {p.type}" for p in sorted(body.params, key=lambda p: p.name)]
    if body.mask is not None:
        lines.append(f"mask {_text(body.mask)}")
    if body.score is not None:
        lines.append(f"score {_text(body.score)}")
    return "\n".join(lines)


def _text(expr: Expr) -> str:
    """``expr`` as nested lists, operator first; no two expressions share one."""
    while isinstance(expr, Named):
        expr = expr.expr
    if isinstance(expr, Const):
        return repr(expr.value)  # 1, 1.0 and True are three
    if isinstance(expr, Name):
        return expr.id
    if isinstance(expr, Load):
        return _listed("load", expr.capture, *map(_text, expr.index))
    if isinstance(expr, Unary):
        return _listed(expr.op, _text(expr.operand))
    if isinstance(expr, Binary):
        return _listed(expr.op, _text(expr.left), _text(expr.right))
    if isinstance(expr, Select):
        return _listed("if", _text(expr.condition), _text(expr.then), _text(expr.otherwise))
    assert isinstance(expr, Call)
    return _listed(expr.function, *map(_text, expr.args))


def _listed(*parts: str) -> str:
    return f"({' '.join(parts)})"
