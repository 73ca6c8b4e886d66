"""The operators, functions and types of the language, and how Python's tree spells them."""

from __future__ import annotations

import ast

from ..body import CaptureDtype
from ..ir.nodes import Type

INT64 = 2**63 - 1
"""Ints are of 64 bits."""

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
MANY = 64  # arguments of min and max
FUNCTION_ARGS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("abs", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos",
         "floor", "int", "float"),
        (1, 1),
    ),
    **dict.fromkeys(("min", "max"), (2, MANY)),
    **dict.fromkeys(("clamp", "where"), (3, 3)),
}  # fmt: skip
"""How many arguments each function takes, at least and at most."""

LOAD_TYPE: dict[CaptureDtype, Type] = {
    "bool": "bool",
    "int32": "int",
    "int64": "int",
    "fp16": "float",
    "bf16": "float",
    "fp32": "float",
    "fp64": "float",
}
A_TYPE: dict[Type, str] = {"bool": "a bool", "int": "an int", "float": "a float"}

OUR_WORDS = {
    **dict.fromkeys(("i", "q", "q_pos", "row", "query", "m"), "q_idx"),
    **dict.fromkeys(("j", "k", "k_idx", "kv_pos", "col", "key", "n"), "kv_idx"),
    **dict.fromkeys(("seqlen_q", "len_q", "Lq"), "q_len"),
    **dict.fromkeys(("seqlen_k", "seqlen_kv", "k_len", "len_k", "Lk"), "kv_len"),
    **dict.fromkeys(("batch", "batch_idx"), "b"),
    **dict.fromkeys(("head", "head_idx"), "h"),
    **dict.fromkeys(("head_kv", "kv_head", "hkv"), "h_kv"),
    **dict.fromkeys(("true", "TRUE"), "True"),
    **dict.fromkeys(("false", "FALSE"), "False"),
    "s": "score",
}
"""Words of other systems for names in scope: never accepted, but an error then names ours."""
