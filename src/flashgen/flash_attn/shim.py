"""This package -> ``flash_attn``: entries of sys.modules, and a distribution with a version."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from importlib.metadata._meta import SimplePath
from pathlib import Path

from ..generator.errors import FlashgenError

NAME = "flash_attn"
INTERFACE_VERSION = "2.8.3"  # the flash_attn whose interface this is
_MODULES = (
    "",
    ".bert_padding",
    ".flash_attn_interface",
    ".layers",
    ".layers.rotary",
    ".modules",
    ".modules.mha",
)


def install() -> None:
    """Make ``import flash_attn``, and all of its modules that flashgen has, find these.

    For code that asks before it imports, ``importlib.util.find_spec`` finds it too, and
    ``importlib.metadata`` gives it a version. Call it before such code is imported.

    Raises:
        FlashgenError: when another flash_attn is imported already.
    """
    there = sys.modules.get(NAME)
    if there is not None and there is not sys.modules[__package__]:
        raise FlashgenError(
            f"flash_attn.install: expected no flash_attn to be imported yet, got {there!r:.80}. "
            "Call it before the first import of flash_attn."
        )
    for suffix in _MODULES:
        sys.modules[NAME + suffix] = importlib.import_module(__package__ + suffix)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Undo ``install``; modules that have imported from flash_attn keep what they have."""
    for suffix in _MODULES:
        if sys.modules.get(NAME + suffix) is sys.modules.get(__package__ + suffix):
            sys.modules.pop(NAME + suffix, None)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


class _Distribution(Distribution):
    """What importlib.metadata says of flash_attn."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {INTERFACE_VERSION}\n"

    def locate_file(self, path: object) -> SimplePath:
        return Path(__file__).parent / str(path)


class _Finder(DistributionFinder):
    """Finds the distribution, and no module: those are in sys.modules."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        name = None if context is None else context.name
        if name is None or name.replace("-", "_").lower() == NAME:
            yield _Distribution()
