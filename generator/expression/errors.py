"""What is wrong in an expression, and which of its characters."""

from __future__ import annotations


class ExpressionError(Exception):
    """An expression is refused.

    Attributes:
        message: what was expected, what came, what to do.
        start: index of the first character at fault.
        end: index past the last one.
    """

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = max(end, start + 1)
