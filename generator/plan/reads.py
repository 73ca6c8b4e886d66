"""Program -> how finely it reads captured tensors, which decides the registers of a kernel."""

from __future__ import annotations

from ..ir import Load, Name, walk
from ..program import Program


def read_levels(program: Program) -> frozenset[str]:
    """How fine the program's reads of tensors are.

    "position" where any is of a row or a column, "line" where the score has such a read, "score"
    where it has one of both.
    """
    found = set()
    for root in (program.mask, program.score):
        for node in () if root is None else walk(root):
            if isinstance(node, Load):
                names = {n.id for n in walk(node) if isinstance(n, Name)} & {"q_idx", "kv_idx"}
                found |= {"position"} if names else set()
                if root is program.score and names:
                    found.add("score" if len(names) == 2 else "line")
    return frozenset(found)
