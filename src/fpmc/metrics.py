"""How close images are to reference images from the same noise (Table 2), and to the training images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpmc.data import load_images
from fpmc.data.pictures import decode, is_picture
from fpmc.errors import InputError
from fpmc.images import ImageSet


@dataclass(frozen=True, eq=False)
class Comparison:
    """r², MSE and Pearson's r per image, their means and standard errors (standard deviation over images / √n)."""

    r2_per_image: Tensor        # float64 (n,)
    mse_per_image: Tensor       # float64 (n,)
    pearson_per_image: Tensor   # float64 (n,)

    def __len__(self) -> int:
        return len(self.mse_per_image)

    @property
    def r2(self) -> float:
        return self.r2_per_image.mean().item()

    @property
    def r2_se(self) -> float:
        return standard_error(self.r2_per_image)

    @property
    def r2_median(self) -> float:
        """Well above the mean where a few images went another way and most did not."""
        return self.r2_per_image.quantile(0.5).item()

    @property
    def mse(self) -> float:
        return self.mse_per_image.mean().item()

    @property
    def mse_se(self) -> float:
        return standard_error(self.mse_per_image)

    @property
    def pearson(self) -> float:
        return self.pearson_per_image.mean().item()

    @property
    def pearson_se(self) -> float:
        return standard_error(self.pearson_per_image)

    def first(self, count: int) -> Comparison:
        """Of the first images alone."""
        return Comparison(self.r2_per_image[:count], self.mse_per_image[:count], self.pearson_per_image[:count])

    def summary(self) -> dict[str, float | None]:
        """Means, standard errors and the median r² by name, for JSON; a single image has no standard error (None)."""
        names = ("r2", "r2_se", "r2_median", "mse", "mse_se", "pearson", "pearson_se")
        values: dict[str, float] = {name: getattr(self, name) for name in names}
        return {"images": len(self), **{name: v if math.isfinite(v) else None for name, v in values.items()}}


def compare(images: Any, reference: Any) -> Comparison:
    """Image by image against a reference (Table 2): r²_i = 1 − MSE_i / Var_i, Var_i over all of reference image i.

    Both are (n, C, H, W) around [−1, 1], not clipped (uint8 is brought there). Pearson's r is a different number than
    r² and does not see a wrong mean or contrast; with a constant image it is 0.
    """
    x, y = (_stack(value, what).flatten(1) for value, what in ((images, "images"), (reference, "reference")))
    if x.shape != y.shape or np.shape(images) != np.shape(reference):
        raise InputError(f"images {_shape(images)} and reference {_shape(reference)} differ in shape; pair them first")
    mse = (x - y).square().mean(1)
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    variance = y.square().mean(1)
    if bool((variance == 0).any()):
        constant = int((variance == 0).nonzero()[0])
        raise InputError(f"reference image {constant} is one flat colour, so its r² is undefined; leave it out")
    norm = (x.square().sum(1) * y.square().sum(1)).sqrt()
    pearson = torch.where(norm > 0, (x * y).sum(1) / norm, 0.0)
    return Comparison(1 - mse / variance, mse, pearson)


def paired(a: Comparison, b: Comparison) -> Comparison:
    """The differences a − b image by image: means and standard errors of r², MSE and Pearson's r *differences*.

    Two denoisers judged on the same noise share most of their scatter, so this tells apart what two ± cannot.
    """
    if len(a) != len(b):
        raise InputError(f"paired differences need the same images, got {len(a)} and {len(b)}")
    return Comparison(
        a.r2_per_image - b.r2_per_image,
        a.mse_per_image - b.mse_per_image,
        a.pearson_per_image - b.pearson_per_image,
    )


@dataclass(frozen=True, eq=False)
class Nearest:
    """The closest training image of every image."""

    distance: Tensor    # float64 (n,) root mean square difference per value, 0 for a copy
    index: Tensor       # int64 (n,) its position in the set


def nearest(images: Any, source: ImageSet, *, chunk: int = 2048) -> Nearest:
    """Distance to the nearest training image, streaming; the optimal denoiser's samples are copies (Sec. 2.1)."""
    x = _stack(images, "images")
    if x.shape[1:] != source.shape:
        raise InputError(f"images of shape {tuple(x.shape[1:])} cannot be looked up among {source.shape} ones")
    x = x.flatten(1)
    best, index = torch.full((len(x),), torch.inf, dtype=torch.float64), torch.zeros(len(x), dtype=torch.int64)
    for start in range(0, len(source), chunk):
        y = source.scaled(slice(start, start + chunk), torch.float64).flatten(1)
        squared = y.square().sum(1) - 2 * x @ y.T  # ‖x‖² is the same for all candidates
        least, where = squared.min(1)
        index = torch.where(least < best, start + where, index)
        best = torch.minimum(best, least)
    # The expanded form loses digits near 0: measure the winner itself.
    distance = (x - source.scaled(index, torch.float64).flatten(1)).square().mean(1).sqrt()
    return Nearest(distance, index)


def load_samples(source: Any) -> tuple[Tensor, tuple[int, ...] | None]:
    """Images float32 (n, C, H, W) and their seeds, if known, of an array, a `Samples`, a file, a folder or a run.

    A run directory is read from its `samples.npy`: float32 and unclipped, as the comparison wants them. A folder of
    PNGs is 8-bit and clipped to [−1, 1], which moves the MSE a little; files named by number (000017.png) are seeds.
    """
    if not isinstance(source, str | Path):
        images = getattr(source, "images", source)
        return _stack(images, "images").float(), getattr(source, "seeds", None)
    path = Path(source)
    if (path / "samples.npy").is_file():
        images = _read_array(path / "samples.npy")
        if not (path / "seeds.npy").is_file():
            return images, None
        # Written batch by batch, samples first: seeds.npy says how many of them are whole.
        seeds = tuple(_read_numbers(path / "seeds.npy"))
        return images[: len(seeds)], seeds
    if path.suffix == ".npy" and path.is_file():
        return _read_array(path), None
    if not path.exists():
        raise InputError(f"no such file or folder: {str(path)!r}; give a run directory, a folder of images or an array")
    if path.is_file() and is_picture(path.name):
        return _stack(decode(path.read_bytes(), path.name)[None], str(path)).float(), None
    images = load_images(path).scaled()
    names = sorted(entry.stem for entry in path.iterdir() if entry.suffix.lower() == ".png") if path.is_dir() else []
    seeds = tuple(map(int, names)) if len(names) == len(images) and all(n.isdecimal() for n in names) else None
    return images, seeds


def standard_error(values: Tensor) -> float:
    """Standard deviation over images / √n; of one image it is not known (nan)."""
    return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _read_array(path: Path) -> Tensor:
    return _stack(_load(path), str(path)).float()


def _read_numbers(path: Path) -> list[int]:
    return _load(path).ravel().astype(np.int64).tolist()


def _load(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{str(path)!r} is no readable array ({error}); write it again with numpy.save") from error


def _stack(value: Any, what: str) -> Tensor:  # float64 (n, C, H, W)
    tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    if tensor.ndim != 4 or 0 in tensor.shape:
        raise InputError(f"{what} must be (n, C, H, W) with n >= 1, got shape {tuple(tensor.shape)}")
    if tensor.dtype == torch.uint8:
        return tensor.double().sub_(127.5).div_(127.5)
    if not tensor.dtype.is_floating_point:
        raise InputError(f"{what} must be floats around [−1, 1] or uint8, got {tensor.dtype}")
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{what} hold NaN or infinite values")
    return tensor.double()


def _shape(value: Any) -> str:
    return "×".join(map(str, np.shape(value)))
