"""What a person writes in a spec: its fields, their types, limits and descriptions.

The one definition of the language's structure: msgspec validates against it and the JSON Schema
is made from it. Annotations are not postponed here: msgspec would evaluate each of them when it
first reads a spec, which is a quarter of the time that loading a built kernel takes.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from .arch import TARGETS
from .body import AXES, CAPTURE_DTYPES, CaptureDtype
from .expression.names import MAX_NAME_CHARS, NAME_PATTERN
from .expression.tokens import MAX_CHARS
from .variant import (
    BLOCK_STEP,
    HEAD_DIM_STEP,
    MAX_BLOCK,
    MAX_HEAD_DIM,
    MAX_SOFTCAP,
    MAX_WINDOW,
    MIN_SOFTCAP,
)

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


Bound = Annotated[int, Meta(ge=0, le=MAX_WINDOW)] | None


class WindowFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A sliding window around the bottom-right diagonal; a bound left out is none."""

    left: Annotated[Bound, Meta(description="Keys before the diagonal that a query sees.")] = None
    right: Annotated[Bound, Meta(description="Keys after the diagonal that a query sees.")] = None


class SinkFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Attention sinks: a logit of each head that joins the softmax's denominator."""

    per: Annotated[Literal["head"], Meta(description="One logit for each query head.")]
    grad: Annotated[bool, Meta(description="Whether the backward gives its gradient.")] = True


BlockSize = Annotated[int, Meta(ge=BLOCK_STEP, le=MAX_BLOCK, multiple_of=BLOCK_STEP)]


class BlockMaskFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of the blocks that a call's boolean map shows or hides."""

    q: Annotated[BlockSize, Meta(description="Queries of a block: a multiple of 16.")]
    kv: Annotated[BlockSize, Meta(description="Keys of a block: a multiple of 16.")]


NamePattern = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME_CHARS)]
Dim: TypeAlias = Annotated[int, Meta(ge=1)] | NamePattern


class CaptureFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that expressions read: a keyword argument of the call."""

    dims: Annotated[
        list[Dim],
        Meta(
            description=f"Sizes: numbers, compile-time params, or {', '.join(AXES)}; [] is a scalar"
        ),
    ]
    dtype: Annotated[CaptureDtype, Meta(description="Of its elements.")]
    grad: Annotated[bool, Meta(description="Whether the backward gives its gradient.")] = False


class RuntimeParam(Struct, frozen=True, forbid_unknown_fields=True):
    """A number that is a keyword argument of the call; another value never rebuilds."""

    runtime: Annotated[Literal["int", "float"], Meta(description="int is of 64 bits.")]


HeadDim: TypeAlias = Size | HeadDims
Dropout: TypeAlias = bool | DropoutBits
Causal: TypeAlias = bool | Literal["top_left"]
NoneOf = Annotated[bool, Meta(extra_json_schema={"const": False})]
"""``false``: without; ``true`` would not say how much."""
Window: TypeAlias = NoneOf | Literal["runtime"] | WindowFields
Softcap: TypeAlias = (
    NoneOf | Literal["runtime"] | Annotated[float, Meta(ge=MIN_SOFTCAP, le=MAX_SOFTCAP)]
)
Layout: TypeAlias = Literal["dense", "varlen"]
ParamValue: TypeAlias = bool | int | float | RuntimeParam
Expression: TypeAlias = (
    Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)] | bool | int | float
)
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
    layout: Annotated[
        Layout | Annotated[list[Layout], _LISTED],
        Meta(description="dense, or varlen: sequences packed along one axis of tokens."),
    ] = "dense"
    causal: Annotated[
        Causal | Annotated[list[Causal], _LISTED],
        Meta(
            description="Query i sees keys up to i + seqlen_k - seqlen_q (bottom-right), or with "
            "top_left up to i."
        ),
    ] = False
    window: Annotated[
        Window | Annotated[list[Window], _LISTED],
        Meta(
            description="Query i sees keys from i + seqlen_k - seqlen_q - left to i + seqlen_k - "
            "seqlen_q + right; runtime: call arguments window_left and window_right."
        ),
    ] = False
    softcap: Annotated[
        Softcap | Annotated[list[Softcap], _LISTED],
        Meta(
            description="Scores become softcap * tanh(score / softcap); runtime: a call argument."
        ),
    ] = False
    alibi: Annotated[
        bool | Annotated[list[bool], _LISTED],
        Meta(
            description="Adds -alibi_slopes[h] * |i + seqlen_k - seqlen_q - j| to the score of "
            "query i and key j; alibi_slopes is a call argument."
        ),
    ] = False
    sink: Annotated[
        bool | SinkFields,
        Meta(description="A learnable logit of each head in the softmax's denominator."),
    ] = False
    block_mask: (
        Annotated[
            BlockMaskFields,
            Meta(description="Blocks that the call argument block_mask, a boolean map, shows."),
        ]
        | UnsetType
    ) = UNSET
    dropout: Annotated[
        Dropout | Annotated[list[Dropout], _LISTED],
        Meta(description="Compile dropout in; its p, seed and offset are call arguments."),
    ] = False
    deterministic: Annotated[
        bool | Annotated[list[bool], _LISTED],
        Meta(description="Make every gradient the same bit for bit from run to run."),
    ] = False
    captures: Annotated[
        dict[NamePattern, CaptureFields],
        Meta(description="Tensors that expressions read: {doc: {dims: [seqlen_k], dtype: int32}}."),
    ] = {}
    params: Annotated[
        dict[NamePattern, ParamValue],
        Meta(description="Numbers of the expressions: constants, or {runtime: int | float}."),
    ] = {}
    let: Annotated[
        dict[NamePattern, Expression],
        Meta(description="Expressions with a name, in order; later ones may read earlier ones."),
    ] = {}
    mask: Annotated[
        Expression,
        Meta(description="Whether query q_idx sees key kv_idx: an expression that is a bool."),
    ] = field(default_factory=lambda: True)
    score: Annotated[
        Expression,
        Meta(description="The score in place of 'score': an expression that is a number."),
    ] = field(default_factory=lambda: "score")
    tuning: Annotated[
        dict[str, PassTuning],
        Meta(description="Pins over the plan: {sm80: {forward: {tile_m: 128}}}."),
    ] = {}


RESERVED = {
    "layout": {
        "paged": "Paged keys and values are reserved for a later release; use dense or varlen."
    },
    "dtype": dict.fromkeys(
        ("fp8", "fp8_e4m3", "fp8_e5m2", "e4m3", "e5m2"),
        "fp8 is reserved for a later release; use fp16 or bf16.",
    ),
}
"""Words of the language that no template serves yet: refused by name, with the sentence."""

_LISTS = "or a list of these"
EXPECTED = {
    "name": "a name of letters, digits, '.', '_' and '-', starting with a letter or digit",
    "head_dim": f"a multiple of 8 from 8 to 256, {{qk: 192, v: 128}}, {_LISTS}",
    "dtype": f"one of fp16, bf16, fp32, fp64, {_LISTS}",
    "arch": f"one of {', '.join(TARGETS)}, {_LISTS}",
    "passes": f"forward, backward, {_LISTS}",
    "layout": f"dense, varlen, {_LISTS}",
    "causal": f"true, false, top_left, {_LISTS}",
    "window": f"{{left: 4096, right: 0}}, runtime, false, {_LISTS}",
    "softcap": f"a number from {MIN_SOFTCAP} to {MAX_SOFTCAP:.0f}, runtime, false, {_LISTS}",
    "alibi": f"true, false, {_LISTS}",
    "sink": "true, false or {per: head, grad: true}",
    "block_mask": "{q: 128, kv: 128}",
    "dropout": f"true, false, {{bits: 8}}, {{bits: 16}}, {_LISTS}",
    "deterministic": f"true, false, {_LISTS}",
    "captures": "{name: {dims: [seqlen_k], dtype: int32}}",
    "params": "{name: 4096} or {name: {runtime: int}}",
    "let": "{name: 'expression'}",
    "mask": "an expression in quotes",
    "score": "an expression in quotes",
    "tuning": "{target: {forward: {field: value}, backward: {field: value}}}",
}
"""What each field takes, as the error messages word it."""

EXPECTED_BELOW = {
    ("head_dim", "qk"): "a multiple of 8 from 8 to 256",
    ("head_dim", "v"): "a multiple of 8 from 8 to 256",
    ("dropout", "bits"): "8 or 16",
    ("window", "left"): f"an integer from 0 to {MAX_WINDOW}",
    ("window", "right"): f"an integer from 0 to {MAX_WINDOW}",
    ("sink", "per"): "head",
    ("sink", "grad"): "true or false",
    ("block_mask", "q"): f"a multiple of {BLOCK_STEP} from {BLOCK_STEP} to {MAX_BLOCK}",
    ("block_mask", "kv"): f"a multiple of {BLOCK_STEP} from {BLOCK_STEP} to {MAX_BLOCK}",
    ("captures", "dims"): "a list of sizes, such as [num_heads, seqlen_k]",
    ("captures", "dtype"): f"one of {', '.join(CAPTURE_DTYPES)}",
    ("captures", "grad"): "true or false",
    ("params", "runtime"): "int or float",
}
"""What a field below a field takes, by the outermost's name and its own."""
