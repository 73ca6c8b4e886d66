"""Errors -> exit codes and one line on stderr."""

from __future__ import annotations

from ..generator.errors import (
    ArgumentError,
    BenchError,
    CacheError,
    CompileError,
    FlashgenError,
    PlanError,
    SpecError,
    TargetError,
    ToolchainError,
)

OK = 0
CHECK_FAILED = 1  # the tool ran; what it checked is wrong
BAD_INPUT = 2  # usage, spec, key, target or pin; click uses 2 for usage as well
BUILD_FAILED = 3  # toolchain, compilation or cache

MEANING = (
    "Exit codes: 0 done; 1 a check failed (verify, bench, generate --check, cache verify, doctor); "
    "2 wrong usage, spec, key or target; 3 no toolchain, a failed build or an unusable cache."
)

_CODES: tuple[tuple[type[FlashgenError], int], ...] = (
    (SpecError, BAD_INPUT),
    (TargetError, BAD_INPUT),
    (PlanError, BAD_INPUT),
    (ArgumentError, BAD_INPUT),
    (BenchError, CHECK_FAILED),
    (ToolchainError, BUILD_FAILED),
    (CompileError, BUILD_FAILED),
    (CacheError, BUILD_FAILED),
)


def exit_code(error: FlashgenError) -> int:
    """The exit code that ``error`` ends a command with."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), CHECK_FAILED)
