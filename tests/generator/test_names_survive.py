"""What a spec names is found by that name in the rendered kernels, for the whole catalogue."""

from __future__ import annotations

import re

import pytest

from flashgen.generator.arch import parse_target
from flashgen.generator.body import Body
from flashgen.generator.ir import Named, walk
from flashgen.generator.ir.cpp_names import cpp_name
from flashgen.generator.plan import plan
from flashgen.generator.render import render
from flashgen.runtime.catalogue import Catalogue

ENTRIES = [entry for entry in Catalogue.load().entries if entry.variant.body is not None]
WORD = re.compile(r"[A-Za-z_]\w*")


def names_of(body: Body) -> set[str]:
    """Of captures, run-time params and lets, as the code spells them."""
    roots = [root for root in (body.mask, body.score) if root is not None]
    lets = {node.id for root in roots for node in walk(root) if isinstance(node, Named)}
    return {cpp_name(name) for name in (*lets, *(n.name for n in (*body.captures, *body.params)))}


@pytest.mark.parametrize("target", ["cpu", "sm80", "sm90"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.spec.name)
def test_captures_params_and_lets_keep_their_names(entry, target):
    named = names_of(entry.variant.body)
    for pass_name in entry.spec.passes:
        text = render(plan(entry.variant, pass_name, parse_target(target))).text
        code = "\n".join(line.partition("//")[0] for line in text.splitlines())
        missing = {name for name in named if name not in set(WORD.findall(code))}
        assert not missing, f"{pass_name}: {missing}"
