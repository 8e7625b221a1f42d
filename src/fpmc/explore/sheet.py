"""Attribution on paper: the answer, the images that made it, where each of them speaks; along the path as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from fpmc.explore.pack import unpack
from fpmc.explore.path import Path
from fpmc.explore.shares import shares
from fpmc.report.grid import image_grid, stack

WIDE = 8                                                # images a row
STOPS = torch.tensor([(0, 34, 78), (60, 77, 110), (124, 123, 120), (187, 173, 108), (254, 232, 56)])  # cividis


def along(path: Path, mask: Tensor, top: int) -> Iterator[dict[str, Any]]:
    """The largest shares at every level of a path, noisiest first."""
    for level in range(path.length):
        z, answer = path.upto(level)
        yield summary(shares(path.denoiser, z.to(path.device), answer, path.levels[level], mask, top))


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The numbers of an attribution, without its arrays."""
    images = [{key: row[key] for key in ("id", "share", "set", "label", "word")} for row in found["images"]]
    return {key: found[key] for key in ("sigma", "effective", "gaussian", "others", "count")} | {"images": images}


def over_path(levels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares by training image, the mean over the levels of a path; of images that were among the top somewhere."""
    sums: dict[tuple[str, int], float] = {}
    for level in levels:
        for row in level["images"]:
            key = (row["set"], row["id"])
            sums[key] = sums.get(key, 0.0) + row["share"] / len(levels)
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return [{"set": name, "id": number, "mean_share": share} for (name, number), share in ordered]


def picture(found: dict[str, Any], z: Tensor, mask: Tensor, title: str) -> Image.Image:
    """z, the answer and the pixels asked for; below them the top images, and where each speaks."""
    answer = _array(found["answer"])
    dim = (z / z.abs().max().clamp(min=1)).expand(3, -1, -1) if len(answer) == 1 else z / z.abs().max().clamp(min=1)
    colored = answer.expand(3, -1, -1)
    framed = torch.where(mask, colored, 0.35 * colored - 0.65)          # what was not asked for is dimmed
    pages = [image_grid({"": torch.stack([dim, colored, framed])}, columns=["z", "answer", "asked for"], title=title)]
    rows = [row for row in found["images"] if row["speaks"]]
    for start in range(0, len(rows), WIDE):
        part = rows[start : start + WIDE]
        shown = torch.stack([(_array(row["pixels"]) - 127.5) / 127.5 for row in part])
        maps = torch.stack([heat(_array(row["map"])) for row in part])
        labels = [f"{100 * row['share']:.2f} % · {row['id']}" for row in part]
        pages.append(image_grid({"image": shown.expand(-1, 3, -1, -1), "speaks": maps}, columns=labels, cell=112))
    return stack(pages)


def heat(values: Tensor) -> Tensor:  # (H, W) -> (3, H, W) in [−1, 1]
    """A map relative to its largest value, in colours that look the same to the colour-blind."""
    place = (values / values.max().clamp(min=1e-30)).clamp(0, 1) * (len(STOPS) - 1)
    low = place.floor().clamp(max=len(STOPS) - 2).long()
    part = (place - low)[..., None]
    return ((STOPS[low] * (1 - part) + STOPS[low + 1] * part) / 127.5 - 1).permute(2, 0, 1)


def _array(packed: dict[str, Any]) -> Tensor:
    return torch.from_numpy(unpack(packed).copy()).float()
