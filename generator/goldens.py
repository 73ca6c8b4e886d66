"""The chosen variants whose renderings are committed in generated/: the one table, as text."""

from __future__ import annotations

from dataclasses import dataclass

from .arch import TARGETS
from .plan import plan
from .render import render
from .variant import parse_key

INDEX = "README.md"


@dataclass(frozen=True, slots=True)
class Golden:
    """One committed rendering.

    Attributes:
        key: the variant.
        pass_name: "forward" or "backward".
        target: name of the target.
        shows: what a reader finds in this file and in no earlier one.
        family: whose template renders it; None for the target's best.
    """

    key: str
    pass_name: str
    target: str
    shows: str
    family: str | None = None


GOLDENS: tuple[Golden, ...] = (
    Golden("d64-fp32", "forward", "cpu", "the plain CPU forward: tiles and online softmax"),
    Golden("d64-fp32", "backward", "cpu", "the plain CPU backward: scores recomputed from lse"),
    Golden("d128-bf16-causal", "forward", "cpu", "16-bit storage with fp32 sums; a causal mask"),
    Golden("d64-fp16-causal-dropout", "backward", "cpu", "dropout replayed in the backward"),
    Golden("d64-fp16", "forward", "sm80", "the plain tensor-core forward", "sm80"),
    Golden("d64-fp16", "backward", "sm80", "the plain tensor-core backward", "sm80"),
    Golden("d128-bf16-causal", "forward", "sm80", "causal: tiles skipped, boundary tiles masked"),
    Golden("d128-bf16-causal", "backward", "sm80", "the same bounds seen from the keys' side"),
    Golden("d64-fp16-causal-dropout", "forward", "sm80", "dropout in the accumulator's order"),
    Golden("d64-fp16-causal-dropout", "backward", "sm80", "the keep bits for the transposed tile"),
    Golden("d192v128-bf16-causal", "forward", "sm80", "qk and v heads of different sizes"),
    Golden("d128-bf16-causal-det", "backward", "sm80", "a dq that is bitwise reproducible"),
    Golden("d64-fp16-causal", "forward", "sm75", "Turing: tiles on their way wait in registers"),
    Golden("d64-fp16-causal", "backward", "sm75", "the same in the backward"),
    Golden("d64-bf16", "forward", "sm90", "the plain wgmma forward: three warpgroups compute"),
    Golden("d128-bf16-causal", "forward", "sm90", "queries in registers; work from a counter"),
    Golden("d128-bf16-causal", "backward", "sm90", "five wgmma products a step, dQ added in fp32"),
)


def render_goldens(goldens: tuple[Golden, ...] = GOLDENS) -> tuple[tuple[str, str], ...]:
    """The files of generated/, as (name, text), the index last.

    Raises:
        PlanError: when a variant of the table has no plan.
    """
    files = []
    for golden in goldens:
        chosen = plan(
            parse_key(golden.key),
            golden.pass_name,
            TARGETS[golden.target],
            family=golden.family,
        )
        rendered = render(chosen)
        files.append((rendered.name, rendered.text))
    names = [name for name, _ in files]
    return (*files, (INDEX, _index(goldens, names)))


def _index(goldens: tuple[Golden, ...], names: list[str]) -> str:
    rows = [
        f"| [{name}]({name}) | {golden.shows} |"
        for golden, name in zip(goldens, names, strict=True)
    ]
    return "\n".join(
        [
            "# Committed renderings",
            "",
            "What the templates give for a chosen dozen variants, so that a change of a template",
            "or of a plan shows as a diff. Written by `flashgen generate`, kept true by",
            "`flashgen generate --check`: never edit a file here. Each compiles alone, with",
            "`-I templates` for its few headers and the include folder of apache-tvm-ffi.",
            "",
            "| file | what it shows |",
            "|---|---|",
            *rows,
            "",
        ]
    )
