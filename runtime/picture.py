"""TileMap -> a picture of it, with Pillow: the optional extra ``docs``.

A PNG with text needs fonts and an encoder, which flashgen does not exist for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..generator.errors import FlashgenError
from .tilemap import CLASS_NAMES, TileMap

if TYPE_CHECKING:
    from PIL.Image import Image

Color = tuple[int, int, int]
CLASS_COLORS: tuple[Color, Color, Color] = ((233, 236, 239), (255, 183, 77), (38, 112, 181))
"""Empty, partial, full: told apart in grey too."""
HIDDEN: Color = CLASS_COLORS[0]
VISIBLE: Color = CLASS_COLORS[2]
_LOW: Color = (178, 24, 43)
_MIDDLE: Color = (247, 247, 247)
_HIGH: Color = (33, 102, 172)
_INK: Color = (33, 37, 41)
_PAPER: Color = (255, 255, 255)
_MAP_PIXELS = 512
_MARGIN_PIXELS = 16
_TEXT_PIXELS = 14


def draw_tiles(tiles: TileMap, title: str) -> Image:
    """The map of a call's tiles: queries downwards, keys to the right, with a legend below."""
    image_module, draw_module, font = _pillow()
    rows, columns = tiles.classes.shape
    cell = max(1, _MAP_PIXELS // max(1, rows, columns))
    width, height = max(columns * cell, 360), rows * cell
    line = _TEXT_PIXELS + 6
    size = (width + 2 * _MARGIN_PIXELS, height + 2 * _MARGIN_PIXELS + 7 * line)
    image: Image = image_module.new("RGB", size, _PAPER)
    draw = draw_module.Draw(image)
    left, top = _MARGIN_PIXELS, _MARGIN_PIXELS
    for text in (title, _sizes_text(tiles)):
        draw.text((left, top), text, fill=_INK, font=font)
        top += line
    top += 4
    image.paste(_cells(tiles.classes, CLASS_COLORS, cell), (left, top))
    if cell >= 6:
        _grid(draw, left, top, rows, columns, cell)
    top += height + 8
    for number, name in enumerate(CLASS_NAMES):
        box = (left, top, left + _TEXT_PIXELS, top + _TEXT_PIXELS)
        draw.rectangle(box, fill=CLASS_COLORS[number], outline=_INK)
        text = f"{name}: {tiles.share(number):.1%} of the tiles{_MEANING[number]}"
        draw.text((left + line, top - 1), text, fill=_INK, font=font)
        top += line
    draw.text(
        (left, top), f"{tiles.visible_share:.1%} of all (query, key) pairs are visible",
        fill=_INK, font=font,
    )  # fmt: skip
    return image


_MEANING = (", skipped", "", ", without the mask")


def draw_shares(visible: torch.Tensor, pixels: int = 4) -> Image:
    """A small picture of a mask: each cell as dark as the share of it that is visible.

    Args:
        visible: shares in [0, 1], (rows, columns).
        pixels: size of a cell.
    """
    steps = (visible * 32).round().to(torch.uint8)
    steps = torch.where((visible > 0) & (steps == 0), 1, steps)  # a little is not nothing
    colors = [_mix(HIDDEN, VISIBLE, step / 32) for step in range(33)]
    return _cells(steps, colors, pixels)


def draw_scores(scores: torch.Tensor, visible: torch.Tensor, pixels: int = 4) -> Image:
    """A small picture of what a program does to scores: red below the middle, blue above.

    Args:
        scores: new scores, (rows, columns).
        visible: bool, likewise; what isn't is grey.
        pixels: size of a cell.
    """
    seen = scores[visible]
    low, high = (seen.min().item(), seen.max().item()) if seen.numel() else (0.0, 0.0)
    steps = ((scores - low) / (high - low if high > low else 1.0) * 63).round().clamp(0, 63)
    steps = torch.where(visible, steps + 1, 0).to(torch.uint8)
    scale = [_diverging(step / 63) for step in range(64)]
    return _cells(steps, [HIDDEN, *scale], pixels)


def save_png(image: Image, path: Path) -> None:
    """Write ``image``; the folder must exist.

    Raises:
        FlashgenError: when the file can't be written.
    """
    try:
        image.save(path, format="PNG", optimize=True)
    except OSError as error:
        raise FlashgenError(f"{path}: expected to write a PNG, got: {error.strerror}.") from None


def _cells(numbers: torch.Tensor, colors: Sequence[Color], pixels: int) -> Image:
    """A palette image: each cell ``pixels`` wide, in the color of its number."""
    image_module, _, _ = _pillow()
    rows, columns = numbers.shape
    image: Image = image_module.new("P", (columns, rows))
    image.putpalette([part for color in colors for part in color])
    image.putdata(numbers.flatten().tolist())
    return image.resize((columns * pixels, rows * pixels), image_module.Resampling.NEAREST)


def _grid(draw: Any, left: int, top: int, rows: int, columns: int, cell: int) -> None:
    for row in range(rows + 1):
        y = top + row * cell
        draw.line((left, y, left + columns * cell, y), fill=_PAPER)
    for column in range(columns + 1):
        x = left + column * cell
        draw.line((x, top, x, top + rows * cell), fill=_PAPER)


def _sizes_text(tiles: TileMap) -> str:
    sizes = tiles.sizes
    return (
        f"{sizes.seqlen_q} queries down, {sizes.seqlen_k} keys across, "
        f"tiles of {tiles.tile_m} x {tiles.tile_n}"
    )


def _mix(a: Color, b: Color, share: float) -> Color:
    mixed = [round(x + (y - x) * share) for x, y in zip(a, b, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def _diverging(share: float) -> Color:
    if share < 0.5:
        return _mix(_LOW, _MIDDLE, share * 2)
    return _mix(_MIDDLE, _HIGH, share * 2 - 1)


def _pillow() -> tuple[Any, Any, Any]:
    """Pillow's Image and ImageDraw, and its own font.

    Raises:
        FlashgenError: when Pillow isn't installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise FlashgenError(
            "picture: expected Pillow, which draws it, got none. "
            "pip install 'flashgen[docs]', or pip install pillow."
        ) from None
    return Image, ImageDraw, ImageFont.load_default(_TEXT_PIXELS)
