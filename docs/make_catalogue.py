"""The shipped specs -> docs/catalogue.md and its pictures: run `python docs/make_catalogue.py`.

Everything on the page comes from the YAML files and from the expressions that they become: the
text from their comments, the formulas from the program, the pictures from evaluating it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from flashgen.cli.explain import derivative_texts, lets_of, spec_text
from flashgen.cli.list import group_of
from flashgen.generator.ir import to_text
from flashgen.generator.program import Program, program_for
from flashgen.runtime.catalogue import Catalogue, CatalogueEntry
from flashgen.runtime.examples import Sizes, example_for
from flashgen.runtime.picture import draw_scores, draw_shares
from flashgen.runtime.tilemap import mask_of, score_of

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "catalogue.md"
PICTURES = FOLDER / "catalogue"
PIXELS = 256
TITLES = {
    "masks": "Masks: who sees whom",
    "models": "Models",
    "options": "Options: dtypes, dropout, determinism",
    "scores": "Scores: biases, factors, caps",
}


@dataclass(frozen=True)
class View:
    """The call that a picture shows.

    Attributes:
        seqlen_q: queries.
        seqlen_k: keys.
        step: every which token is looked at.
        pool: samples to a cell of the picture, along either axis.
        numbers: run-time params, in place of the example's.
        lengths: of the sequences, of a packed call.
    """

    seqlen_q: int = 128
    seqlen_k: int = 128
    step: int = 1
    pool: int = 1
    numbers: dict[str, int | float] = field(default_factory=dict)
    lengths: tuple[int, ...] = (36, 64, 28)


VIEWS = {
    "sliding-window": View(numbers={"window_left": 24, "window_right": 8}),
    "dilated": View(512, 512, pool=2),
    "strided": View(512, 512, pool=2),
    "top-left": View(96, 128),
    "dynamic-chunk": View(numbers={"chunk": 16}),
    "longformer": View(2048, 2048, step=4, pool=4),
    "streaming": View(4096, 4096, step=4, pool=8),
    "neighborhood": View(256, 256, numbers={"width": 16}),
    "block-diffusion": View(256, 256, pool=2),
    "flamingo": View(256, 192, pool=2),
    "tree": View(64, 128),
    "block-sparse": View(1024, 1024, step=2, pool=4),
    "mistral": View(8192, 8192, step=16, pool=4),
    "gemma2-local": View(8192, 8192, step=16, pool=4),
    "gpt-oss-local": View(512, 512, pool=4),
    "llama4": View(32768, 32768, step=64, pool=4),
    "modernbert": View(pool=5, lengths=(180, 320, 140)),
    "t5": View(256, 256, step=2),
    "relative-bias": View(256, 256, step=2),
    "relative-product": View(256, 256, step=2),
    "swin": View(49, 49),
}
"""Sizes at which a spec's mask is seen; others are shown at 128 by 128 tokens."""


def samples(program: Program, view: View, packed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What is visible (bool) and what a score of 1 becomes (fp64), (queries, keys) sampled."""
    if packed:
        parts = [samples(program, View(n, n, numbers=view.numbers), False) for n in view.lengths]
        return (
            torch.block_diag(*(visible for visible, _ in parts)).bool(),
            torch.block_diag(*(scores for _, scores in parts)),
        )
    sizes = Sizes(view.seqlen_q, view.seqlen_k)
    example = example_for(program, sizes, view.numbers)
    queries, keys = (range(0, n, view.step) for n in (view.seqlen_q, view.seqlen_k))
    return (
        mask_of(program, example, sizes, queries, keys),
        score_of(program, example, sizes, queries, keys),
    )


def picture(entry: CatalogueEntry) -> Any:
    """A variant's scores, where they differ from place to place, or else its mask."""
    program = program_for(entry.variant)
    view = VIEWS.get(entry.spec.name, View())
    visible, scores = samples(program, view, entry.variant.layout == "varlen")
    pixels = max(1, PIXELS * view.pool // max(visible.shape))
    seen = scores[visible]
    if program.score is not None and seen.max() - seen.min() > 1e-6:
        return draw_scores(scores, visible, pixels)
    shares = torch.nn.functional.avg_pool2d(visible[None].double(), view.pool)[0]
    return draw_shares(shares, pixels)


def pixels_of(image: Any) -> tuple[Any, bytes]:
    """What makes two pictures the same, whatever the file's encoding."""
    return image.size, image.convert("RGB").tobytes()


def page(catalogue: Catalogue) -> tuple[str, dict[str, Any]]:
    """The page's text, and its pictures by file name."""
    pictures: dict[str, Any] = {}
    entries: dict[str, CatalogueEntry] = {}
    for entry in catalogue.entries:
        entries.setdefault(entry.spec.name, entry)
    text = INTRODUCTION.format(specs=len(entries), variants=len(catalogue.entries))
    lines = text.splitlines() + [""]
    for group, members in groupby(entries.values(), lambda entry: group_of(entry.spec)):
        lines += [f"## {TITLES.get(group, group)}", ""]
        for entry in members:
            lines += section(entry, pictures)
    return "\n".join(lines).rstrip() + "\n", pictures


INTRODUCTION = """\
<!-- Written by docs/make_catalogue.py from the specs; a test keeps it true. -->
# The catalogue

{specs} specs, {variants} variants: what `flashgen list` lists and `specs/` holds. Each is an example to copy.
`flashgen explain NAME` says more of one, and shows which tiles of a call it skips.

In a picture of a mask, queries go down and keys to the right, and what is visible is blue. In a picture of scores, the
color is what a score of 1 becomes, from red (the least) to blue (the most). What a picture needs to know of captures is
made up; `flashgen explain --help` says how.
"""


def section(entry: CatalogueEntry, pictures: dict[str, Any]) -> Iterator[str]:
    """The lines on one spec."""
    spec, program = entry.spec, program_for(entry.variant)
    text = spec_text(spec)
    comment, yaml = split_comment(text)
    yield f"### {spec.name}"
    yield ""
    if program.mask is not None or program.score is not None:
        drawn = picture(entry)
        alike = [file for file, other in pictures.items() if pixels_of(other) == pixels_of(drawn)]
        name = alike[0] if alike else f"{spec.name}.png"
        pictures[name] = drawn
        yield f'<img src="catalogue/{name}" alt="{spec.name}" align="right" width="{PIXELS}">'
        yield ""
    if comment:
        yield linked(comment)
        yield ""
    yield from ("```yaml", f"# {relative(spec.path)}", *yaml.splitlines(), "```", "")
    for label, formula in formulas(program):
        yield f"* {label}: `{formula}`"
    keys = ", ".join(f"`{key}`" for key in spec.keys)
    yield f"* key{'s' * (len(spec.keys) > 1)}: {keys}"
    yield ""
    yield '<br clear="right">'
    yield ""


def formulas(program: Program) -> Iterator[tuple[str, str]]:
    """What a program computes, each part with a label."""
    for name, text in lets_of(program).items():
        yield f"where {name}", text
    if program.mask is not None:
        yield "sees a key where", to_text(program.mask, lets=True)
    if program.score is not None:
        yield "score", to_text(program.score, lets=True)
        for name, text in derivative_texts(program).items():
            if name != "score":
                yield f"adds to the gradient of {name}", text


def split_comment(text: str) -> tuple[str, str]:
    """The comment that a spec starts with, as prose, and the rest."""
    lines = text.splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    prose = "\n".join(line[1:].strip() for line in lines[:count])
    return prose, "\n".join(lines[count:])


def linked(text: str) -> str:
    """``text`` with its addresses as links."""
    return re.sub(r"https?://[^\s,;)]+", lambda m: f"<{m[0]}>", text)


def relative(path: str) -> str:
    """The path below the checkout: specs/FOLDER/FILE."""
    return "/".join(Path(path).parts[-3:])


def main() -> None:
    """Write the page and its pictures; pictures of specs that are gone are removed."""
    text, pictures = page(Catalogue.load())
    PICTURES.mkdir(exist_ok=True)
    for file in PICTURES.glob("*.png"):
        if file.name not in pictures:
            file.unlink()
    for name, image in pictures.items():
        image.save(PICTURES / name, optimize=True)
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name} and {len(pictures)} pictures written", file=sys.stderr)


if __name__ == "__main__":
    main()
