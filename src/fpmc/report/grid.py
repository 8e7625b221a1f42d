"""Image grids with labelled rows and columns, e.g. a row per denoiser and the same seed in the same column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fpmc.errors import InputError

INK, FAINT, PAPER = (32, 32, 32), (120, 120, 120), (255, 255, 255)


def image_grid(
    rows: Mapping[str, Tensor],             # label -> images (n, C, H, W) around [−1, 1]
    *,
    columns: Sequence[str] = (),            # labels over the columns
    title: str = "",
    corner: str = "",                       # what the column labels are, e.g. "seed"
    cell: int = 84,                         # images are enlarged by whole factors up to about this many pixels
) -> Image.Image:
    """Pixels enlarged without smoothing, clipped to [−1, 1], nothing else done to them."""
    shapes = {tuple(images.shape[1:]) for images in rows.values()}
    count = max((len(images) for images in rows.values()), default=0)
    if len(shapes) != 1 or count == 0:
        raise InputError(f"a grid needs images (n, C, H, W) of one shape, got {sorted(shapes) or 'no rows'}")
    channels, height, width = shapes.pop()
    if channels not in (1, 3):
        raise InputError(f"a picture has 1 or 3 channels, got {channels}")
    if columns and len(columns) != count:
        raise InputError(f"{len(columns)} column labels for {count} images a row")
    zoom = max(1, round(cell / max(height, width)))
    step_x, step_y, gap = width * zoom + 3, height * zoom + 3, 12
    text, small, bold = _font(15), _font(12), _font(17, bold=True)
    left = gap + max([*(_width(text, label) for label in rows), _width(small, corner)]) + gap
    heading = 34 if title else gap
    top = heading + (20 if columns else 0)
    right = max(left + step_x * count - 3, gap + _width(bold, title))
    page = Image.new("RGB", (right + gap, top + step_y * len(rows) - 3 + gap), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((gap, heading / 2 + 2), title, INK, bold, anchor="lm")
    for i, label in enumerate(columns):
        draw.text((left + i * step_x + width * zoom / 2, top - 5), label, FAINT, small, anchor="ms")
    if columns:
        draw.text((left - gap, top - 5), corner, FAINT, small, anchor="rs")
    for j, (label, images) in enumerate(rows.items()):
        y = top + j * step_y
        draw.text((left - gap, y + height * zoom / 2), label, INK, text, anchor="rm")
        for i, image in enumerate(images):
            large = to_picture(image).resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
            page.paste(large, (left + i * step_x, y))
    return page


def stack(pages: Sequence[Image.Image]) -> Image.Image:
    """Several grids, one below the other."""
    page = Image.new("RGB", (max(p.width for p in pages), sum(p.height for p in pages)), PAPER)
    y = 0
    for part in pages:
        page.paste(part, (0, y))
        y += part.height
    return page


def to_picture(image: Tensor) -> Image.Image:  # (C, H, W) around [−1, 1]
    """An image as 8-bit pixels, clipped, rounded to the nearest."""
    pixels = image.detach().cpu().double().mul(127.5).add(127.5).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())


def _width(font: ImageFont.FreeTypeFont, text: str) -> int:
    return round(font.getlength(text))


@lru_cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    import matplotlib  # ships DejaVu, which has σ, ² and ±

    name = f"fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / name), size)
