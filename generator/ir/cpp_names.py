"""A name of the language -> a name that rendered code is free to use."""

from __future__ import annotations

import re

_RESERVED = frozenset(
    """
    alignas alignof and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class
    compl const const_cast constexpr continue decltype default delete do double dynamic_cast else
    enum explicit export extern false float for friend goto if inline int long mutable namespace new
    noexcept not_eq nullptr operator or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile
    wchar_t while xor xor_eq
    int32_t int64_t uint32_t uint64_t NAN INFINITY NULL EOF INT64_MIN INT64_MAX INT_MAX INT_MIN
    assert errno unix linux stdin stdout stderr
    math flashgen std Acc Element Head Row Column Range Capture Bound ProgramArgs
    CaptureFp16 CaptureBf16 Half Bfloat16
    SiteGradients TileClass TileBounds Interval args head row column sites bounds score dscore
    b h h_kv q_idx kv_idx q_len kv_len num_heads q_start kv_start q_begin q_end kv_begin kv_end
    band_lower band_upper num_q_tiles num_kv_tiles q_tile kv_tile q_first q_last kv_first kv_last
    within load place
    start note set_scale for_each function threads elements largest terms sums gradients ok out
    include capture_size
    """.split()
)
_OURS = re.compile(r"k?[A-Z]+[a-z]|(FLASHGEN|TVM)_")
"""How the rendered code's own types, constants and macros begin: Head, kTileM, FLASHGEN_HOOK."""


def cpp_name(name: str) -> str:
    """``name`` where the rendered code is free to use it, else with an underscore behind it.

    Different names stay different: what gets an underscore ends in one.
    """
    taken = name.rstrip("_") in _RESERVED or name.endswith("_") or "__" in name
    return f"{name}_" if taken or _OURS.match(name) else name
