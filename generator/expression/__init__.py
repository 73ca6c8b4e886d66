"""Expression text -> typed IR: a small, safe subset of Python's expressions.

Python's own parser gives the tree, after a scan that bounds what it sees; nothing is evaluated.
Errors are `ExpressionError` with the range of characters at fault.
"""

from __future__ import annotations

from .errors import ExpressionError
from .names import check_name, nearest
from .parser import Parsed, parse_expression
from .scope import Scope

__all__ = ["ExpressionError", "Parsed", "Scope", "check_name", "nearest", "parse_expression"]
