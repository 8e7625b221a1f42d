"""The training images behind an answer, as the page shows them: shares that add up to 1 in print, too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fpmc.core.fpmc import FPMC
from fpmc.engine.attribution import Attribution
from fpmc.errors import InputError
from fpmc.explore.pack import pack

UNIT = 10_000                                           # shares are printed in hundredths of a percent
HEARD = 1e-4                                            # of the largest share: whoever has less is not shown by name
CLASSES = {
    "fashion": (
        "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


def region_mask(region: tuple[int, int, int, int] | None, shape: tuple[int, int, int]) -> Tensor:
    """The pixels of a box (top, left, bottom, right), both ends in it; None: all. bool (H, W)."""
    _, height, width = shape
    mask = torch.zeros(height, width, dtype=torch.bool)
    top, left, bottom, right = region or (0, 0, height - 1, width - 1)
    if not (0 <= top <= bottom < height and 0 <= left <= right < width):
        raise InputError(f"the box {region} does not lie inside images of {height}×{width}; choose pixels in it")
    mask[top : bottom + 1, left : right + 1] = True
    return mask


def shares(denoiser: Any, z: Tensor, answer: Tensor, sigma: float, mask: Tensor, top: int) -> dict[str, Any]:
    """The `top` images with the largest share in the answer D(z, σ) at the pixels of `mask`; both (1, C, H, W)."""
    if not isinstance(denoiser, FPMC):
        name = getattr(denoiser, "name", None) or type(denoiser).__name__
        raise InputError(f"{name} is a network: it holds no training images to attribute to; click an analytic answer")
    return described(denoiser.attribute(z, sigma, top, mask=mask), answer, sigma)


def described(found: Attribution, answer: Tensor, sigma: float) -> dict[str, Any]:
    """An attribution of one answer (1, C, H, W) as plain data."""
    weights, gaussian = found.weights[0].double(), float(found.gaussian[0])
    others = max(0.0, float(found.rest[0]) - gaussian)
    speaks = (weights >= HEARD * weights.max()) & (weights > 0) if len(weights) else weights > 0
    shown, shown_others, shown_gaussian = in_print((weights * speaks).tolist(), gaussian)
    rows = []
    for place, (index, name) in enumerate(zip(found.index[0].tolist(), found.ids[0].tolist())):
        rows.append({
            "index": index, "id": name, "share": float(weights[place]), "shown": shown[place] / UNIT,
            "speaks": bool(speaks[place]),
            **_origin(found, index), "map": pack(found.maps[0, place]), "answer": pack(found.answers[0, place]),
            "pixels": pack(found.images.read(found.index[0, place : place + 1])[0]),
        })
    return {
        "sigma": sigma, "images": rows, "others": others, "gaussian": gaussian, "answer": pack(answer[0]),
        "shown_others": shown_others / UNIT, "shown_gaussian": shown_gaussian / UNIT,
        "effective": float(found.effective[0]) if gaussian < 1 else 0.0, "count": sum(len(s) for s in found.gallery),
    }


def in_effect(count: float) -> str:
    """A number of images as one says it: three digits of a small one, a large one whole."""
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def in_print(weights: list[float], gaussian: float) -> tuple[list[int], int, int]:
    """Shares in whole units that add up to exactly one: what rounding leaves over goes to the other images."""
    shown, shown_gaussian = [round(UNIT * weight) for weight in weights], round(UNIT * gaussian)
    others = UNIT - sum(shown) - shown_gaussian
    if others < 0:                                      # rounded up more often than down, and nothing is left
        if shown:
            shown[0] += others
        else:
            shown_gaussian += others
        others = 0
    return shown, others, shown_gaussian


def _origin(found: Attribution, index: int) -> dict[str, Any]:
    """The set an image belongs to (an augmented copy says so by its set's name), and its class."""
    for part in found.gallery:
        if index < len(part):
            label = None if part.labels is None else int(part.labels[index])
            names = CLASSES.get(part.name.split("+")[0], ())
            word = None if label is None else names[label] if label < len(names) else f"class {label}"
            return {"set": part.name, "copy": "+" in part.name, "label": label, "word": word}
        index -= len(part)
    raise AssertionError("an index into the gallery lies in one of its sets")
