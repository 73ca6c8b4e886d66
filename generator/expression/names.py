"""Names that a spec gives to captures, params and lets: their form, and those already taken."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable

from ..body import AXES
from ..ir.nodes import FUNCTIONS, INDEX_NAMES

MAX_NAME_CHARS = 40
NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*$"

CALL_NAMES = frozenset(
    "q k v out lse dq dk dv dout dlse softmax_scale dropout_p dropout_threshold seed offset "
    "rng_state workspace return_lse generator self alibi_slopes sink dsink block_mask window_left "
    "window_right softcap cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
)
"""Arguments that a call has already, or whose names people know to mean something else."""

_CPP_WORDS = frozenset(
    "alignas alignof and_eq asm auto bitand bitor bool case catch char char16_t char32_t char8_t "
    "compl concept const const_cast consteval constexpr constinit co_await co_return co_yield "
    "decltype default delete do double dynamic_cast enum explicit export extern friend goto "
    "inline int32_t int64_t long mutable namespace new noexcept not_eq nullptr operator or_eq "
    "private protected public register reinterpret_cast requires short signed size_t sizeof "
    "static static_assert static_cast struct switch template this thread_local throw typedef "
    "typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq half "
    "INFINITY NAN NULL EOF assert errno linux unix true false std flashgen".split()
)
"""A name is printed in the kernels as it stands, so it may be no word of C++."""


def check_name(name: str, *, is_argument: bool) -> str:
    """Why ``name`` can't be given to a let, capture or param; "" where it can.

    Args:
        name: the name.
        is_argument: whether it names an argument of the call, as captures and params do.
    """
    if len(name) > MAX_NAME_CHARS or not re.fullmatch(NAME_PATTERN, name):
        shown = name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."
        return (
            f"expected a name of at most {MAX_NAME_CHARS} letters, digits and single '_', "
            f"starting with a letter, got {shown!r}. Rename it."
        )
    taken = _taken(name, is_argument)
    return f"expected a name of its own, got {name!r}, {taken}. Rename it." if taken else ""


def _taken(name: str, is_argument: bool) -> str:
    if name in FUNCTIONS:
        return "which is a function of the language"
    if name in INDEX_NAMES or name == "score":
        return "which every expression has in scope"
    if keyword.iskeyword(name):
        return "a word that Python keeps to itself"
    if name in _CPP_WORDS:
        return "a word that C++ keeps to itself"
    if is_argument and name in CALL_NAMES:
        return "which a call has an argument for already"
    if is_argument and name in AXES:
        return "which names a size of the call"
    return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` with the nearest of ``known``; "" where none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if not near:
        near = [k for k in known if k.lower() == name.lower()][:1]
    return f" Did you mean {near[0]!r}?" if near else ""
