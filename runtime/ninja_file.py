"""Commands -> build.ninja, and its run with one report for each command that ends."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ninja

from ..generator.errors import ToolchainError
from . import knobs

LOG_NAME = "build.log"
STARTED_NAME = "started"  # empty; its time is when the command began
STATUS_NAME = "exit_status"  # the command's exit status as text, written when it ends
_FINISHED = re.compile(r"^@\d+/\d+@ (\d+)\s*$")
_RULE = """\
# One edge a translation unit. Each writes its own log; ninja's output holds progress alone.
ninja_required_version = 1.7

rule compile
  command = $command_line
  depfile = $depfile_path
  deps = gcc
  description = $index
"""


@dataclass(frozen=True, slots=True)
class Edge:
    """One command that makes ``output`` from ``source``, both names inside ``directory``."""

    directory: Path
    command: tuple[str, ...]
    source: str
    output: str
    depfile: str


def ninja_text(edges: Sequence[Edge]) -> str:
    """The build file of ``edges``; each reports itself by its index."""
    parts = [_RULE]
    for index, edge in enumerate(edges):
        output = _escape_path(edge.directory / edge.output)
        source = _escape_path(edge.directory / edge.source)
        parts.append(
            f"build {output}: compile {source}\n"
            f"  command_line = {_escape(_shell_command(edge))}\n"
            f"  depfile_path = {_escape(str(edge.directory / edge.depfile))}\n"
            f"  index = {index}\n"
        )
    return "\n".join(parts)


def run_ninja(directory: Path, jobs: int, on_finished: Callable[[int], None]) -> str:
    """Run ``directory``/build.ninja, and go on after a failure; the rest of ninja's output.

    Args:
        directory: holds build.ninja; ninja's own log goes there.
        jobs: the most commands at once.
        on_finished: called in this thread with the index of each command that has ended.

    Raises:
        ToolchainError: when ninja itself can't be run.
    """
    rest: list[str] = []
    try:
        process = subprocess.Popen(
            [*_clean_environment(), _ninja_program(), "-k", "0", "-j", str(jobs)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ToolchainError(
            f"toolchain: ninja: expected a program that runs, got {error}. "
            "Install it again with: pip install --force-reinstall ninja"
        ) from error
    assert process.stdout is not None
    try:
        for line in process.stdout:
            match = _FINISHED.match(line)
            if match:
                on_finished(int(match[1]))
            else:
                rest.append(line)
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()  # ninja then ends its commands too
            process.wait()
        process.stdout.close()
    return "".join(rest)


def _clean_environment() -> list[str]:
    # messages in English, since the first error line is searched for; no flags that the
    # fingerprint does not know of; ninja's status line is how progress comes back
    return [
        "/usr/bin/env",
        "-u",
        "NVCC_PREPEND_FLAGS",
        "-u",
        "NVCC_APPEND_FLAGS",
        "LC_ALL=C",
        "NINJA_STATUS=@%f/%t@ ",
    ]


def _ninja_program() -> str:
    beside = Path(ninja.BIN_DIR) / "ninja"
    if ninja.BIN_DIR and beside.is_file():
        return str(beside)
    found = shutil.which("ninja", path=knobs.PATH.get())
    if found is None:
        raise ToolchainError(
            "toolchain: expected the program ninja, found none. "
            "Install it with: pip install --force-reinstall ninja"
        )
    return found


def _shell_command(edge: Edge) -> str:
    # inside the directory the names are plain ASCII, whatever the path to it holds
    return (
        f"cd {shlex.quote(str(edge.directory))} && {{ : > {STARTED_NAME}; "
        f"{shlex.join(edge.command)} > {LOG_NAME} 2>&1; code=$?; "
        f"echo $code > {STATUS_NAME}; exit $code; }}"
    )


def _escape(text: str) -> str:
    if "\n" in text:
        raise ToolchainError(
            f"build: expected a path without line breaks, got {text!r}. "
            f"Set {knobs.CACHE_DIR.name} to another directory."
        )
    return text.replace("$", "$$")


def _escape_path(path: Path) -> str:
    return _escape(str(path)).replace(" ", "$ ").replace(":", "$:")
