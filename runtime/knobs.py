"""Environment variables: the one module that reads them, each as a typed descriptor.

Use ``knobs.CACHE_DIR.get()``, ``knobs.MAX_JOBS.get()``: the value, checked and converted, or the
default. Nothing is read at import, so a test may set a variable with ``monkeypatch.setenv``.
``KNOBS`` are flashgen's own (the README's table is tested against them); ``FOREIGN`` are other
programs' variables that flashgen honours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..generator.errors import ArgumentError

T = TypeVar("T")

LOG_LEVELS = ("off", "error", "warning", "info", "debug")
BUILD_ON_USE = ("auto", "never")


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """One environment variable.

    Attributes:
        name: the variable, such as ``FLASHGEN_MAX_JOBS``.
        type: what its text must be, in words, as the README's table has it.
        default: what holds without it, in words.
        effect: what it does, one sentence.
    """

    name: str
    type: str
    default: str
    effect: str
    _convert: Callable[[str], T]
    _fallback: T

    def get(self) -> T:
        """The variable's value, or the default where it is unset or empty.

        Raises:
            ArgumentError: when the text is not of the knob's type; names both.
        """
        text = os.environ.get(self.name, "")
        if not text.strip():
            return self._fallback
        try:
            return self._convert(text)
        except ValueError:
            raise ArgumentError(
                f"{self.name}: expected {self.type}, got {text!r}. "
                f"Set another value, or unset it for the default ({self.default})."
            ) from None

    @property
    def is_set(self) -> bool:
        """Whether the environment has it, not empty."""
        return bool(os.environ.get(self.name, "").strip())


def _path(text: str) -> Path:
    # the cache is used from other directories (ninja runs in its own), so it is made absolute
    return Path(os.path.abspath(_expanded(text)))  # noqa: PTH100  (resolve() would follow links)


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(_path(part) for part in text.split(os.pathsep) if part.strip())


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # "~" without HOME and without a passwd entry
        raise ValueError(text) from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    return convert


# paths.cache_root() applies its default, which follows from other variables
CACHE_DIR: Knob[Path | None] = Knob(
    "FLASHGEN_CACHE_DIR",
    "directory",
    "$XDG_CACHE_HOME/flashgen, else ~/.cache/flashgen",
    "Where built kernels are kept.",
    _path,
    None,
)
SPECS: Knob[tuple[Path, ...]] = Knob(
    "FLASHGEN_SPECS",
    f"directories, separated by '{os.pathsep}'",
    "none",
    "Folders of specs (*.yaml, recursive) read after the shipped ones.",
    _paths,
    (),
)
CUDA_HOME: Knob[Path | None] = Knob(
    "FLASHGEN_CUDA_HOME",
    "directory",
    "CUDA_HOME, then PATH, then the pip packages",
    "The CUDA toolkit to use: the directory that holds bin/nvcc.",
    _path,
    None,
)
MAX_JOBS: Knob[int | None] = Knob(
    "FLASHGEN_MAX_JOBS",
    "positive integer",
    "bounded by cores and free memory",
    "The most compilers to run at once.",
    _positive,
    None,
)
LOG: Knob[str] = Knob(
    "FLASHGEN_LOG",
    f"one of {', '.join(LOG_LEVELS)}",
    "info",
    "The least level that is logged to stderr; info is one line for each build on first use.",
    _one_of(LOG_LEVELS),
    "info",
)
PREBUILT: Knob[tuple[Path, ...]] = Knob(
    "FLASHGEN_PREBUILT",
    f"directories, separated by '{os.pathsep}'",
    "none",
    "Bundles of `flashgen bundle`, searched before anything is built; read only.",
    _paths,
    (),
)
BUILD: Knob[str] = Knob(
    "FLASHGEN_BUILD",
    f"one of {', '.join(BUILD_ON_USE)}",
    "auto",
    "never: a kernel that is neither built nor prebuilt is an error, and not built on first use.",
    _one_of(BUILD_ON_USE),
    "auto",
)
KNOBS: tuple[Knob[Path | None] | Knob[tuple[Path, ...]] | Knob[int | None] | Knob[str], ...] = (
    CACHE_DIR,
    SPECS,
    CUDA_HOME,
    MAX_JOBS,
    LOG,
    PREBUILT,
    BUILD,
)
"""flashgen's own variables, in the order of the README's table."""


def _foreign(name: str, effect: str) -> Knob[Path | None]:
    return Knob(name, "directory", "unset", effect, _path, None)


HOME = _foreign("HOME", "Where ~/.cache/flashgen lies.")
XDG_CACHE_HOME = _foreign("XDG_CACHE_HOME", "Takes the place of ~/.cache.")
SYSTEM_CUDA_HOME = _foreign("CUDA_HOME", "The CUDA toolkit, after FLASHGEN_CUDA_HOME.")
SYSTEM_CUDA_PATH = _foreign("CUDA_PATH", "The CUDA toolkit, after CUDA_HOME.")
CXX: Knob[str | None] = Knob("CXX", "command", "g++ on PATH", "The host compiler.", str, None)
PATH: Knob[str | None] = Knob("PATH", "directories", "the system's", "Finds compilers.", str, None)
FOREIGN = (HOME, XDG_CACHE_HOME, SYSTEM_CUDA_HOME, SYSTEM_CUDA_PATH, CXX, PATH)
"""Variables of other programs that flashgen honours."""
