"""The expression IR that scores and masks are programs in: nodes, analyses and printers.

Presets (causal, window, softcap, ...) and users' own expressions become the same nodes, so a
template has hooks for a program and no branch for a feature.
"""

from .build import binary, call, compare_all, load, select, simplify, substitute, unary
from .nodes import (
    FUNCTIONS,
    INDEX_NAMES,
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
from .text import to_text
from .types import children, type_of, walk

__all__ = [
    "FUNCTIONS",
    "INDEX_NAMES",
    "Binary",
    "Call",
    "Const",
    "Expr",
    "Load",
    "Name",
    "Named",
    "Select",
    "Type",
    "Unary",
    "binary",
    "call",
    "children",
    "compare_all",
    "load",
    "select",
    "simplify",
    "substitute",
    "to_text",
    "type_of",
    "unary",
    "walk",
]
