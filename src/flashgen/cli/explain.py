"""`flashgen explain`: what a variant computes, and which tiles of a call it skips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..generator.errors import SpecError, ToolchainError
from ..generator.ir import Expr, Named, to_text
from ..generator.ir.types import walk
from ..generator.program import Program, program_for
from ..generator.spec import Spec
from ..generator.variant import Variant
from ..runtime.catalogue import Catalogue, CatalogueEntry, read_spec_file
from .options import json_option, print_json, specs_option

if TYPE_CHECKING:
    from ..runtime.tilemap import TileMap

LABEL_CELLS = 12
MAX_COLUMNS = 200
MAX_PAIRS = 1 << 34  # 131,072 of each: minutes
MAX_TILES = 1 << 22


def read_numbers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, int | float]:
    """``NAME=NUMBER`` pairs by name."""
    numbers: dict[str, int | float] = {}
    for value in values:
        name, equals, text = value.partition("=")
        try:
            numbers[name.strip()] = (
                int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
            )
        except ValueError:
            equals = ""
        if not equals:
            raise click.BadParameter(f"expected NAME=NUMBER, got {value!r}.", ctx, param)
    return numbers


@click.command("explain")
@click.argument("key")
@click.option("--seqlen-q", type=click.IntRange(1), metavar="N", help="Queries of the call shown.")
@click.option("--seqlen-k", type=click.IntRange(1), metavar="N", help="Keys (default: as many).")
@click.option(
    "--tile", type=click.IntRange(1), default=128, show_default=True, metavar="N",
    help="Queries and keys of a tile.",
)  # fmt: skip
@click.option(
    "--set", "numbers", multiple=True, metavar="NAME=NUMBER", callback=read_numbers,
    help="The value of a run-time param, or of all elements of a capture, in the example; "
    "repeatable.",
)  # fmt: skip
@click.option(
    "--png", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Draw the tiles too (needs Pillow: pip install 'flashgen[docs]').",
)  # fmt: skip
@specs_option
@json_option
def command(
    key: str,
    seqlen_q: int | None,
    seqlen_k: int | None,
    tile: int,
    numbers: dict[str, int | float],
    png: Path | None,
    spec_dirs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Say what a variant computes: its spec, mask, score and derivatives; and the tiles it skips.

    The tiles are those of one head and one sequence of 2048 queries and keys, or as many as
    given, as a kernel classifies them: empty ones cost nothing, full ones skip the mask. What
    captures hold decides too, so an example is made up:

    \b
    an int capture along a sequence    0, 1, 2, 3, each for a quarter of it
    an int capture of two sequences    the distance |i - j|
    another int capture                a third of the number of keys
    a bool capture along a sequence    its first sixteenth; of two: where i has all bits of j
    block_mask                         blocks whose row and column are alike modulo 3
    window_left, window_right          a fifth of the keys, 0
    another int param                  the square root of the number of keys
    softcap; another float param       30; 1

    \b
    Examples:
      flashgen explain document-causal
      flashgen explain neighborhood --seqlen-q 4096 --set width=64 --png tiles.png
      flashgen explain my_specs/mine.yaml --seqlen-q 100 --seqlen-k 5000 --tile 64
    """
    catalogue = Catalogue.load(spec_dirs)
    entries = catalogue.find(key)
    if png is not None and len(entries) > 1:
        catalogue.find_one(key)  # says which keys there are to choose from
    seqlen_q = seqlen_q or seqlen_k or 2048
    shown = []
    for entry in entries:
        program = program_for(entry.variant)
        tiles = _tiles(entry.variant, seqlen_q, seqlen_k or seqlen_q, tile, numbers)
        shown.append((entry, program, tiles))
        if png is not None:
            from ..runtime.picture import draw_tiles, save_png

            save_png(draw_tiles(tiles, entry.key), png)
    if as_json:
        print_json([_as_data(*parts) for parts in shown])
        return
    click.echo("\n\n".join("\n".join(_lines(*parts)) for parts in shown))
    if png is not None:
        click.echo(f"\n{png} shows the tiles")


def _check_size(seqlen_q: int, seqlen_k: int, tile: int) -> None:
    """Raise a SpecError where counting each pair would take hours, or the map fill the memory."""
    pairs, tiles = seqlen_q * seqlen_k, -(-seqlen_q // tile) * -(-seqlen_k // tile)
    if pairs > MAX_PAIRS:
        raise SpecError(
            f"explain: expected at most {MAX_PAIRS:,} pairs of a query and a key, as each is "
            f"looked at, got {pairs:,}. Lower --seqlen-q or --seqlen-k."
        )
    if tiles > MAX_TILES:
        raise SpecError(
            f"explain: expected at most {MAX_TILES:,} tiles, got {tiles:,}. Raise --tile."
        )


def _tiles(
    variant: Variant, seqlen_q: int, seqlen_k: int, tile: int, numbers: dict[str, int | float]
) -> TileMap:
    """The tiles of an example; torch is imported here, so that --help answers at once.

    Raises:
        SpecError: when ``numbers`` names what isn't there, the lengths must be equal, or are
            too long to count.
    """
    _check_size(seqlen_q, seqlen_k, tile)
    from ..runtime.captures import signature_of
    from ..runtime.examples import Sizes, example_for
    from ..runtime.tile_classes import kernel_classes
    from ..runtime.tilemap import tile_map

    paired = signature_of(variant).paired
    if paired and seqlen_q != seqlen_k:
        raise SpecError(
            f"explain: expected as many queries as keys, since the mask or score reads {paired[0]} "
            f"at both, got {seqlen_q} and {seqlen_k}. Leave out --seqlen-k."
        )
    program, sizes = program_for(variant), Sizes(seqlen_q, seqlen_k)
    example = example_for(program, sizes, numbers)
    tiles = tile_map(program, example, sizes, tile, tile)
    try:
        return replace(tiles, kernel=kernel_classes(variant, example, sizes, tile, tile))
    except ToolchainError as error:
        click.echo(f"note: tiles are counted, not a kernel's classes: {error}", err=True)
        return tiles


def _lines(entry: CatalogueEntry, program: Program, tiles: TileMap) -> Iterator[str]:
    yield entry.key
    listed = entry.spec.path != "<key>"
    yield from _section("spec", [entry.spec.where if listed else "none lists it"])
    if listed:
        yield from _section("", spec_text(entry.spec).splitlines())
    yield from _section("captures", [_capture_text(c) for c in program.captures] or ["none"])
    if program.params:
        yield from _section("params", [f"{p.name}: {p.type}, at run time" for p in program.params])
    lets = lets_of(program)
    if lets:
        yield from _section("let", [f"{name} = {text}" for name, text in lets.items()])
    yield from _section("mask", [_text(program.mask, "every query sees every key")])
    yield from _section("score", [_text(program.score, "score, unchanged")])
    gradients = derivative_texts(program).items()
    yield from _section("gradients", [f"of {name}: {text}" for name, text in gradients])
    yield from _section("band", [_band_text(program)])
    yield from _section("tile test", [_text(program.tile_test, "none: loop bounds say it all")])
    yield from _tile_lines(tiles)


def _tile_lines(tiles: TileMap) -> Iterator[str]:
    from ..runtime.tilemap import CLASS_MARKS, CLASS_NAMES

    sizes = tiles.sizes
    yield from _section(
        "tiles",
        [
            f"{sizes.seqlen_q} queries (down), {sizes.seqlen_k} keys (across), one head; "
            f"tiles of {tiles.tile_m} x {tiles.tile_n}",
            "  ".join(
                f"{mark} {name} {tiles.share(number):.1%}"
                for number, (mark, name) in enumerate(zip(CLASS_MARKS, CLASS_NAMES, strict=True))
            ),
            f"{tiles.share(0):.1%} of the work is skipped; "
            f"{tiles.visible_share:.1%} of all (query, key) pairs are visible",
            *_unseen_lines(tiles),
        ],
    )
    lines = tiles.lines()
    if lines and len(lines[0]) > MAX_COLUMNS:
        lines = [f"(a map of {len(lines[0])} columns is not printed: give a larger --tile)"]
    yield from _section("", lines)


def _unseen_lines(tiles: TileMap) -> Iterator[str]:
    """What intervals can't tell, where there is such a thing."""
    if tiles.unseen:
        yield (
            f"{tiles.unseen} of {tiles.counted.numel()} tiles are empty or full, but intervals "
            "can't tell: they are visited as partial ones"
        )


def _section(label: str, lines: list[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield f"  {'' if index else label:{LABEL_CELLS}s}  {line}".rstrip()


def _text(expr: Expr | None, otherwise: str) -> str:
    return otherwise if expr is None else to_text(expr, lets=True)


def _capture_text(capture: Any) -> str:
    dims = ", ".join(map(str, capture.dims))
    return f"{capture.name}: {capture.dtype} ({dims}){', with a gradient' * capture.grad}"


def _band_text(program: Program) -> str:
    lower, upper = program.band.lower, program.band.upper
    if lower is None and upper is None:
        return "none: the loops run over all keys"
    text = "kv_idx - q_idx"
    text = text if lower is None else f"{to_text(lower)} <= {text}"
    return text if upper is None else f"{text} <= {to_text(upper)}"


def spec_text(spec: Spec) -> str:
    """The part of its file that ``spec`` is, with the comment above it.

    Raises:
        SpecError: when the file has changed for the worse since it was read.
    """
    file = Path(spec.path)
    starts = sorted(other.line - 1 for other in read_spec_file(file))
    lines = file.read_text(encoding="utf-8-sig").splitlines()
    # a comment belongs to the spec below it
    cuts = [_with_comment(lines, start) for start in starts] + [len(lines)]
    cuts[0] = 0
    at = starts.index(spec.line - 1)
    return "\n".join(lines[cuts[at] : cuts[at + 1]]).strip("\n").removesuffix("---").rstrip()


def _with_comment(lines: list[str], start: int) -> int:
    """The first line of the comment that ends above line ``start``."""
    while start and lines[start - 1].lstrip()[:1] == "#":
        start -= 1
    return start


def lets_of(program: Program) -> dict[str, str]:
    """Each ``let`` that the mask or score uses, by name, in the order of use."""
    roots = [root for root in (program.mask, program.score) if root is not None]
    return {
        node.id: to_text(node.expr, lets=True) for node in walk(*roots) if isinstance(node, Named)
    }


def derivative_texts(program: Program) -> dict[str, str]:
    """What a query and key add to each gradient, from ``dscore``, that of the new score."""
    if program.gradient is None:
        return {"score": "dscore"}
    loads = {to_text(load): to_text(value, lets=True) for load, value in program.gradient.loads}
    return {"score": to_text(program.gradient.score, lets=True), **loads}


def _as_data(entry: CatalogueEntry, program: Program, tiles: TileMap) -> dict[str, Any]:
    sizes = tiles.sizes
    return {
        "key": entry.key,
        "spec": {"name": entry.spec.name, "where": entry.spec.where},
        "captures": [
            {"name": c.name, "dims": list(c.dims), "dtype": c.dtype, "grad": c.grad}
            for c in program.captures
        ],
        "params": [{"name": p.name, "type": p.type} for p in program.params],
        "let": lets_of(program),
        "mask": None if program.mask is None else to_text(program.mask),
        "score": None if program.score is None else to_text(program.score),
        "gradients": derivative_texts(program),
        "band": {
            name: None if bound is None else to_text(bound)
            for name, bound in (("lower", program.band.lower), ("upper", program.band.upper))
        },
        "tile_test": None if program.tile_test is None else to_text(program.tile_test),
        "tiles": {
            "seqlen_q": sizes.seqlen_q,
            "seqlen_k": sizes.seqlen_k,
            "tile_m": tiles.tile_m,
            "tile_n": tiles.tile_n,
            "empty": tiles.share(0),
            "partial": tiles.share(1),
            "full": tiles.share(2),
            "visible": tiles.visible_share,
            "unseen": tiles.unseen,
            "map": tiles.lines(),
        },
    }
