"""The spec language -> JSON Schema, by which editors complete and check specs."""

from __future__ import annotations

from typing import Any

import msgspec

from .spec_fields import SpecFields

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a spec file: one spec, or a list of them."""
    (top,), components = msgspec.json.schema_components([SpecFields], ref_template="#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": "flashgen spec",
        "description": "An attention variant, or a matrix of them, that flashgen compiles.",
        "anyOf": [top, {"type": "array", "items": top, "minItems": 1}],
        "$defs": components,
    }
