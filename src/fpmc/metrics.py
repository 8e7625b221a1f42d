"""How close images are to reference images from the same noise (Table 2), and to the training images."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fpmc.data import load_images
from fpmc.data.pictures import decode, is_picture
from fpmc.errors import InputError
from fpmc.images import ImageSet, check_images

if TYPE_CHECKING:
    from typing_extensions import Self


TRIM = 0.1  # share of the images that a trimmed mean leaves out at either end
RESAMPLES = 1000  # of a bootstrap


@dataclass(frozen=True, eq=False)
class Comparison:
    """r², MSE and Pearson's r per image, and what they come to over images.

    The mean is the paper's. A few images that went another way pull it far down, so there are also the median, a mean
    without the lowest and highest tenth, and the pooled r² = 1 − Σ MSE / Σ Var, in which contrasty images count more.
    Standard errors: of a mean, standard deviation / √n; of the trimmed mean, from the winsorised deviation (Yuen); of
    the pooled r², of the ratio to first order; of the median, from 1,000 bootstrap samples, the same at every call.
    """

    r2_per_image: Tensor        # float64 (n,)
    mse_per_image: Tensor       # float64 (n,)
    pearson_per_image: Tensor   # float64 (n,)
    variance_per_image: Tensor  # float64 (n,), of the reference

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
    def r2_median_se(self) -> float:
        return median_error(self.r2_per_image)

    @property
    def r2_trimmed(self) -> float:
        return trimmed(self.r2_per_image)[0]

    @property
    def r2_trimmed_se(self) -> float:
        return trimmed(self.r2_per_image)[1]

    @property
    def r2_pooled(self) -> float:
        return 1 - self._ratio

    @property
    def r2_pooled_se(self) -> float:
        return standard_error(self.mse_per_image - self._ratio * self.variance_per_image) / self._variance

    @property
    def mse(self) -> float:
        return self.mse_per_image.mean().item()

    @property
    def mse_se(self) -> float:
        return standard_error(self.mse_per_image)

    @property
    def mse_median(self) -> float:
        return self.mse_per_image.quantile(0.5).item()

    @property
    def pearson(self) -> float:
        return self.pearson_per_image.mean().item()

    @property
    def pearson_se(self) -> float:
        return standard_error(self.pearson_per_image)

    def first(self, count: int) -> Self:
        """Of the first images alone."""
        return type(self)(*(getattr(self, field.name)[:count] for field in fields(self)))

    def summary(self) -> dict[str, float | None]:
        """Every figure by name, for JSON; a single image has no standard error (None)."""
        values: dict[str, float] = {name: getattr(self, name) for name in FIGURES}
        return {"images": len(self), **{name: v if math.isfinite(v) else None for name, v in values.items()}}

    @property
    def _variance(self) -> float:
        return self.variance_per_image.mean().item()

    @property
    def _ratio(self) -> float:  # Σ MSE / Σ Var
        return self.mse / self._variance


FIGURES = (
    *("r2", "r2_se", "r2_median", "r2_median_se", "r2_trimmed", "r2_trimmed_se", "r2_pooled", "r2_pooled_se"),
    *("mse", "mse_se", "mse_median", "pearson", "pearson_se"),
)


class Difference(Comparison):
    """Two comparisons with the same reference, subtracted image by image."""

    @property
    def r2_pooled(self) -> float:
        return -self._ratio


def compare(images: Any, reference: Any) -> Comparison:
    """Image by image against a reference (Table 2): r²_i = 1 − MSE_i / Var_i, Var_i over all of reference image i.

    Each is a `Samples`, an `ImageSet`, or an array or tensor (n, C, H, W) around [−1, 1], not clipped; bytes are
    brought there. Pearson's r is a different number than r² and does not see a wrong mean or contrast; with a constant
    image it is 0.
    """
    x, y = (_stack(value, what) for value, what in ((images, "images"), (reference, "reference")))
    if x.shape != y.shape:
        raise InputError(f"images {_shape(x)} and reference {_shape(y)} differ in shape; pair them first")
    x, y = x.flatten(1), y.flatten(1)
    mse = (x - y).square().mean(1)
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    variance = y.square().mean(1)
    if bool((variance == 0).any()):
        constant = int((variance == 0).nonzero()[0])
        raise InputError(f"reference image {constant} is one flat colour, so its r² is undefined; leave it out")
    norm = (x.square().sum(1) * y.square().sum(1)).sqrt()
    pearson = torch.where(norm > 0, (x * y).sum(1) / norm, 0.0)
    return Comparison(1 - mse / variance, mse, pearson, variance)


def paired(a: Comparison, b: Comparison) -> Difference:
    """The differences a − b image by image: mean, median, trimmed mean and pooled *differences*, each with its error.

    Two denoisers judged on the same noise share most of their scatter, so this tells apart what two ± cannot.
    """
    if len(a) != len(b):
        raise InputError(f"paired differences need the same images, got {len(a)} and {len(b)}")
    return Difference(
        a.r2_per_image - b.r2_per_image,
        a.mse_per_image - b.mse_per_image,
        a.pearson_per_image - b.pearson_per_image,
        (a.variance_per_image + b.variance_per_image) / 2,  # of one reference they are the same
    )


@dataclass(frozen=True, eq=False)
class Nearest:
    """The closest training image of every image."""

    distance: Tensor    # float64 (n,) root mean square difference per value, 0 for a copy
    index: Tensor       # int64 (n,) its position in the set


def nearest(images: Any, source: ImageSet, *, chunk: int = 2048) -> Nearest:
    """Distance to the nearest training image, streaming; the optimal denoiser's samples are copies (Sec. 2.1)."""
    x = _stack(images, "images")
    if x.shape[1:] != check_images(source).shape:
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
        return _stack(source, "images").float(), getattr(source, "seeds", None)
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


def trimmed(values: Tensor, share: float = TRIM) -> tuple[float, float]:
    """The mean without the lowest and highest `share`, and its standard error s_w / ((1 − 2·share)·√n) (Yuen 1974).

    s_w is the standard deviation after the values left out are moved to the nearest one that stayed.
    """
    n, ordered = len(values), values.sort().values
    out = int(share * n)
    kept = ordered[out : n - out]
    error = standard_error(ordered.clamp(kept[0].item(), kept[-1].item())) * n / len(kept)
    return kept.mean().item(), error


def median_error(values: Tensor) -> float:
    """The standard deviation of the medians of bootstrap samples; of one image it is not known (nan)."""
    if len(values) < 2:
        return math.nan
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return values[index].quantile(0.5, dim=1).std().item()


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
    tensor = _tensor(value, what)
    if tensor.ndim != 4 or 0 in tensor.shape:
        raise InputError(f"{what} must be (n, C, H, W) with n >= 1, got shape {tuple(tensor.shape)}")
    if tensor.dtype == torch.uint8:
        return tensor.double().sub_(127.5).div_(127.5)
    if not tensor.dtype.is_floating_point:
        raise InputError(f"{what} must be floats around [−1, 1] or uint8, got {tensor.dtype}")
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{what} hold NaN or infinite values")
    return tensor.double()


def _tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, int | float | bool):
        raise InputError(f"{what} must be Samples, an ImageSet, a tensor or an array; got {value!r}")
    value = value.pixels if isinstance(value, ImageSet) else getattr(value, "images", value)  # `Samples` have images
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        return torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} must be Samples, an ImageSet, a tensor or an array; got {type(value).__name__}"
            + ("; read files with fpmc.metrics.load_samples" if isinstance(value, str | Path) else "")
        ) from error


def _shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape))
