"""What a person writes in a spec: its fields, their types, limits and descriptions.

The one definition of the language's structure: msgspec validates against it and the JSON Schema
is made from it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct, field

from .arch import TARGETS
from .variant import HEAD_DIM_STEP, MAX_HEAD_DIM

Dtype: TypeAlias = Literal["fp16", "bf16", "fp32", "fp64"]
PassName: TypeAlias = Literal["forward", "backward"]
Size = Annotated[
    int,
    Meta(
        ge=HEAD_DIM_STEP,
        le=MAX_HEAD_DIM,
        multiple_of=HEAD_DIM_STEP,
        description="Elements of a row: a multiple of 8 from 8 to 256.",
    ),
]


class HeadDims(Struct, frozen=True, forbid_unknown_fields=True):
    """Head sizes where values are not as wide as queries and keys."""

    qk: Annotated[Size, Meta(description="Size of a query and key row.")]
    v: Annotated[Size, Meta(description="Size of a value and output row.")]


class DropoutBits(Struct, frozen=True, forbid_unknown_fields=True):
    """Dropout with a chosen number of random bits per element."""

    bits: Annotated[
        Literal[8, 16],
        Meta(description="8: p in steps of 1/256, the faster; 16: in steps of 1/65536."),
    ]


HeadDim: TypeAlias = Size | HeadDims
Dropout: TypeAlias = bool | DropoutBits
TargetName = Annotated[
    str,
    Meta(
        description="What binaries run on; sm90 may be written 90, 9.0, sm_90 or sm90a.",
        extra_json_schema={
            "anyOf": [
                {"enum": [*TARGETS]},
                {"pattern": r"^((sm|compute)?_?[0-9]+(\.[0-9])?[af]?)$"},
            ]
        },
    ),
]
Target: TypeAlias = TargetName | int | float
Pin: TypeAlias = bool | int | str

_LISTED = Meta(min_length=1, extra_json_schema={"uniqueItems": True})


class PassTuning(Struct, frozen=True, forbid_unknown_fields=True):
    """Pins over the plans of one target."""

    forward: Annotated[dict[str, Pin], Meta(description="Fields of the forward plan.")] = {}
    backward: Annotated[dict[str, Pin], Meta(description="Fields of the backward plan.")] = {}


class SpecFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One attention variant, or a matrix of them where fields are lists."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            max_length=100,
            description="A label to load by, besides the keys; default: the file's name.",
        ),
    ] = field(default_factory=str)  # no default in the schema: "" is not a name
    head_dim: Annotated[
        HeadDim | Annotated[list[HeadDim], _LISTED],
        Meta(description="Head size: a multiple of 8 up to 256, {qk: 192, v: 128}, or a list."),
    ]
    dtype: Annotated[
        Dtype | Annotated[list[Dtype], _LISTED],
        Meta(description="Of q, k, v, out and gradients; fp32 and fp64 run on cpu only."),
    ]
    arch: Annotated[
        Target | Annotated[list[Target], _LISTED],
        Meta(description="Targets to build for by default; restricts nothing that load may build."),
    ] = field(default_factory=lambda: [])  # `list` would put [] in the schema, which is refused
    passes: Annotated[
        PassName | Annotated[list[PassName], _LISTED],
        Meta(
            description="Passes to build by default: forward, backward or (the default) both.",
            extra_json_schema={"default": ["forward", "backward"]},
        ),
    ] = field(default_factory=lambda: ["forward", "backward"])
    causal: Annotated[
        bool | Annotated[list[bool], _LISTED],
        Meta(description="Query i sees keys up to i + seqlen_k - seqlen_q (bottom-right)."),
    ] = False
    dropout: Annotated[
        Dropout | Annotated[list[Dropout], _LISTED],
        Meta(description="Compile dropout in; its p, seed and offset are call arguments."),
    ] = False
    deterministic: Annotated[
        bool | Annotated[list[bool], _LISTED],
        Meta(description="Make every gradient the same bit for bit from run to run."),
    ] = False
    tuning: Annotated[
        dict[str, PassTuning],
        Meta(description="Pins over the plan: {sm80: {forward: {tile_m: 128}}}."),
    ] = {}


FUTURE_FIELDS = (
    "window",
    "softcap",
    "alibi",
    "layout",
    "captures",
    "params",
    "let",
    "mask",
    "score",
    "sink",
    "block_mask",
)
"""Fields of the variant language that no template serves yet: refused by name, never ignored."""

EXPECTED = {
    "name": "a name of letters, digits, '.', '_' and '-', starting with a letter or digit",
    "head_dim": "a multiple of 8 from 8 to 256, {qk: 192, v: 128}, or a list of these",
    "dtype": "one of fp16, bf16, fp32, fp64, or a list of these",
    "arch": f"one of {', '.join(TARGETS)}, or a list of these",
    "passes": "forward, backward, or a list of these",
    "causal": "true, false, or a list of these",
    "dropout": "true, false, {bits: 8}, {bits: 16}, or a list of these",
    "deterministic": "true, false, or a list of these",
    "tuning": "{target: {forward: {field: value}, backward: {field: value}}}",
}
"""What each field takes, as the error messages word it."""
