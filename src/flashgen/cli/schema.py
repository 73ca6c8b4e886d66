"""`flashgen schema`: the JSON Schema of a spec file."""

from __future__ import annotations

import click

from .options import print_json


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of a spec file, for an editor to complete and check specs with.

    \b
    Example:
      flashgen schema > flashgen.schema.json

    In VS Code with the YAML extension, a spec then starts with
    "# yaml-language-server: $schema=flashgen.schema.json".
    """
    from ..generator.schema import json_schema

    print_json(json_schema())
