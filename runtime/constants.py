"""Lookups of `calls` -> constants of a traced graph.

Imported while torch.compile traces a call and never before: marking a function imports the whole
of torch's compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import bodies, calls
from .captures import Signature

constant_signature: Callable[[str], Signature] = torch.compiler.assume_constant_result(  # type: ignore[no-untyped-call]
    calls.find_signature
)
constant_handle: Callable[[str, str], str] = torch.compiler.assume_constant_result(  # type: ignore[no-untyped-call]
    calls.find_handle
)
constant_mark: Callable[[str, str, bool], str] = torch.compiler.assume_constant_result(  # type: ignore[no-untyped-call]
    bodies.find_mark
)
constant_model_mark: Callable[[str, str, str, bool, bool], str] = (
    torch.compiler.assume_constant_result(bodies.find_model_mark)  # type: ignore[no-untyped-call]
)
