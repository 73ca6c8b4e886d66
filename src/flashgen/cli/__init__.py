"""The command line: `flashgen build`, `list`, `show`, `verify` and the rest."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
