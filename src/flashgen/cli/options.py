"""The options that several commands share, and what they turn into."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..generator.arch import FAMILIES, NATIVE, Target, buildable_targets, parse_targets
from ..generator.errors import TargetError

Function = TypeVar("Function", bound=Callable[..., Any])


def read_targets(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[Target, ...]:
    """``sm80``, ``8.0``, ``"8.0;9.0a"``, ``cpu``, ``native``, as targets without repeats."""
    targets: list[Target] = []
    for value in values:
        try:
            native = native_targets() if NATIVE in value.lower() else ()
            # a machine with GPUs of several targets: each of them
            for target in native or (None,):
                targets += parse_targets(value, target)
        except TargetError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return tuple(dict.fromkeys(targets))


def native_targets() -> tuple[Target, ...]:
    """The target of every CUDA device of this machine, or cpu when there is none."""
    from ..runtime.devices import native_targets as detect  # imports torch

    return detect()


def arch_option(function: Function) -> Function:
    """``--arch``, repeatable; the command gets a flat tuple of targets without repeats."""
    return click.option(
        "--arch",
        "arch",
        multiple=True,
        metavar="ARCH",
        callback=read_targets,
        help=f"What the binary runs on: {', '.join(buildable_targets())}, or native (this "
        "machine). 90, 9.0, sm_90 and sm90a spell sm90. Repeatable.",
    )(function)


def family_option(function: Function) -> Function:
    """``--family``."""
    return click.option(
        "--family",
        type=click.Choice(FAMILIES),
        help="Whose templates make the kernel (default: the best for each target).",
    )(function)


def specs_option(function: Function) -> Function:
    """``--specs`` after the command's name, added to those before it."""

    def merge(
        ctx: click.Context, param: click.Parameter, value: tuple[Path, ...]
    ) -> tuple[Path, ...]:
        return (ctx.find_root().obj or ()) + value

    return click.option(
        "--specs",
        "spec_dirs",
        type=click.Path(exists=True, path_type=Path),
        multiple=True,
        metavar="DIR",
        callback=merge,
        help="A folder of specs (or one YAML file) beside the shipped catalogue; repeatable.",
    )(function)


def jobs_option(function: Function) -> Function:
    """``--jobs``."""
    return click.option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="The most compilers at once (default: what cores and free memory allow).",
    )(function)


def json_option(function: Function) -> Function:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for a script.")(
        function
    )


def print_json(value: object) -> None:
    """Print ``value`` as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))
