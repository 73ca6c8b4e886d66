"""Arguments -> a subcommand, imported only when it is asked for."""

from __future__ import annotations

import errno
import importlib
import warnings
from pathlib import Path
from typing import Any

import click

from ..generator.errors import FlashgenError
from ..generator.version import VERSION
from . import exits

# Command -> (module, what it does): `flashgen --help` must not import what the commands need.
COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("build", "Compile variants into the cache."),
    "bundle": ("bundle", "Pack compiled kernels for machines without a compiler."),
    "export": ("export", "Write a kernel as one source file and a C header."),
    "generate": ("generate", "Write rendered sources; keep generated/ true."),
    "list": ("list", "List the variants that the specs stand for."),
    "show": ("show", "Explain one variant: spec, plan, source, resources."),
    "explain": ("explain", "Say what a variant computes, and which tiles it skips."),
    "verify": ("verify", "Run kernels on this machine against an fp64 reference."),
    "bench": ("bench", "Time kernels against every other implementation that is there."),
    "tune": ("tune", "Find the plan that is fastest on this device."),
    "schema": ("schema", "Print the JSON Schema of a spec file."),
    "cache": ("cache", "Look after the compiled kernels: ls, du, gc, rm, verify."),
    "doctor": ("doctor", "Say what this machine can build and run, and what is missing."),
}


class LazyGroup(click.Group):
    """A group whose commands live in modules that are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of a first visit."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command table, from COMMANDS alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error raised on purpose is one line and a meaningful exit code."""
        try:
            return super().invoke(ctx)
        except FlashgenError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(exits.exit_code(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly where a reader has left
            click.echo(
                f"error: {error.filename or 'output'}: expected a place that can be written, got: "
                f"{error.strerror}. Name another, or change its permissions.",
                err=True,
            )
            ctx.exit(exits.BAD_INPUT)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=exits.MEANING,
)
@click.version_option(VERSION, "--version", message="flashgen %(version)s")
@click.option(
    "--specs",
    "spec_dirs",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    metavar="DIR",
    help="A folder of specs (or one YAML file) beside the shipped catalogue; repeatable. "
    "FLASHGEN_SPECS does the same for every command.",
)
@click.pass_context
def app(ctx: click.Context, spec_dirs: tuple[Path, ...]) -> None:
    """Compile attention variants, declared in YAML, into kernels that PyTorch calls.

    \b
    A first visit:
      flashgen list                                    what the specs stand for
      flashgen build --arch sm80 d128-bf16-causal      compile one variant (no GPU needed)
      flashgen show d128-bf16-causal --arch sm80       its plan, shared memory, registers
      flashgen verify                                  run what this machine can run, and check it

    A key such as d64-fp16-causal-dropout needs no spec; a spec is four lines of YAML.
    """
    ctx.obj = spec_dirs


def main() -> None:
    """The console entry point."""
    # flashgen hands torch no arrays: that NumPy is absent is no news to whoever runs a command
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    app(prog_name="flashgen")
