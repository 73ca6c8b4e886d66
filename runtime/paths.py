"""Directories: where the cache lies and where the installed templates and specs are.

``paths.cache_root()`` is the only place that knows the cache's default. Nothing is created here:
the cache makes its own directories when it first writes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..generator.errors import CacheError, FlashgenError
from . import knobs

BUNDLED_SPECS = "specs"  # folder of a bundle


def cache_root() -> Path:
    """The cache directory, absolute, which may not exist yet.

    FLASHGEN_CACHE_DIR, else $XDG_CACHE_HOME/flashgen, else ~/.cache/flashgen.

    Raises:
        CacheError: when none of the variables that it follows from is set.
    """
    chosen = knobs.CACHE_DIR.get()
    if chosen is not None:
        return chosen
    base = knobs.XDG_CACHE_HOME.get()
    if base is not None:
        return base / "flashgen"
    home = knobs.HOME.get()
    if home is None:
        raise CacheError(
            "cache directory ~/.cache/flashgen: expected HOME to be set, got none. "
            f"Set {knobs.CACHE_DIR.name} to a directory that can be written."
        )
    return home / ".cache" / "flashgen"


def prebuilt_roots() -> tuple[Path, ...]:
    """Bundles, or other caches, to search after `cache_root()`, in order; never written to."""
    return knobs.PREBUILT.get()


def prebuilt_specs() -> tuple[Path, ...]:
    """The folders of specs that bundles bring along."""
    folders = (root / BUNDLED_SPECS for root in prebuilt_roots())
    return tuple(folder for folder in folders if folder.is_dir())


@cache
def shipped_specs() -> Path:
    """The folder of the shipped specs."""
    return _package() / "specs"


@cache
def shipped_templates() -> Path:
    """The folder of the shipped templates and device headers."""
    return _package() / "templates"


@cache
def integration_bodies() -> Path:
    """The file of the masks and biases that integrations put variants together from."""
    return _package() / "integrations" / "bodies.yaml"


@cache
def _package() -> Path:
    """The installed package, or src/flashgen: this file is in a folder, or behind a link, of it."""
    return Path(__file__).parent.parent  # not importlib.resources, which takes a millisecond


def generated_folder() -> Path:
    """The folder of committed renderings in this checkout or unpacked sdist.

    Raises:
        FlashgenError: when this flashgen was installed from a wheel, which has no such folder.
    """
    here = Path(__file__).resolve()  # through the link below src/flashgen in a checkout
    for root in here.parents[1:4]:
        if (root / "generated").is_dir() and (root / "pyproject.toml").is_file():
            return root / "generated"
    raise FlashgenError(
        f"generated/: expected a checkout of flashgen around {here.parent}, got an installed copy. "
        "Run this in a checkout, or name a KEY and -o DIR."
    )
