"""The exceptions of every stage, each saying where, what was expected, what came, what to do."""

from __future__ import annotations


class FlashgenError(Exception):
    """Base of every error that flashgen raises on purpose."""


class SpecError(FlashgenError):
    """A spec (YAML or key) is wrong; the message starts with ``file:line:column``."""


class TargetError(FlashgenError):
    """A target is misspelled, unknown or out of the toolkit's reach."""


class PlanError(FlashgenError):
    """No kernel plan fits; the message names the hardware limit or the pin at fault."""


class ToolchainError(FlashgenError):
    """A compiler is missing, too old or too new; the message says what to install."""


class CompileError(FlashgenError):
    """A build failed; the message names key, source, first error line and log."""


class CacheError(FlashgenError):
    """The cache directory can't be used; the message names it and the variable to set."""


class ArgumentError(FlashgenError, ValueError):
    """An argument of a call, or a variable of the environment, is wrong; says what is expected."""


class BenchError(FlashgenError):
    """A benchmark would compare different things; the message names the peer and the cell."""
