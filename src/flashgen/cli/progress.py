"""A build's progress on stderr: one living line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

import click

from ..generator.errors import FlashgenError
from ..runtime.build import BuildEvent

BAR_CELLS = 24


class BuildProgress:
    """Shows the events of `runtime.build.build`.

    On a terminal it redraws one line; into a file or a pipe it prints a line for each unit, so
    that a log shows where the time went.

    Attributes:
        directories: of the artifacts that were compiled, or waited for, rather than found.
        errors: why units failed; one is raised at the end, all of them are worth reading.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.directories: set[Path] = set()
        self.errors: list[FlashgenError] = []
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._start = time.monotonic()

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live and not self._quiet:
            click.echo("\r\x1b[K", nl=False, err=True)  # the summary takes the line's place

    def __call__(self, event: BuildEvent) -> None:
        """Show ``event``."""
        if event.artifact is not None:
            self.directories.add(event.artifact.directory)
        if event.error is not None:
            self.errors.append(event.error)
        if self._quiet:
            return
        if self._live:
            self._draw(event)
        elif event.request is not None:
            width = len(str(event.total))
            click.echo(
                f"[{event.finished:{width}d}/{event.total}] {_outcome(event)} {event.request}",
                err=True,
            )

    def _draw(self, event: BuildEvent) -> None:
        cells = BAR_CELLS * event.finished // max(event.total, 1)
        bar = "#" * cells + "-" * (BAR_CELLS - cells)
        seconds = time.monotonic() - self._start
        line = f"[{bar}] {event.finished}/{event.total} {seconds:4.0f} s"
        if event.request is not None:
            line += f"  {_outcome(event)} {event.request}"
        click.echo(f"\r\x1b[K{line}", nl=False, err=True)


def _outcome(event: BuildEvent) -> str:
    if event.artifact is None:
        return "failed"
    return f"{event.artifact.manifest.build_seconds:5.1f} s"
