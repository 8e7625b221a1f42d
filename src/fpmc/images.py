"""The data D: images as bytes, with labels and source ids."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fpmc.errors import InputError, show

Array: TypeAlias = "Tensor | np.ndarray | Sequence[Any]"
Index: TypeAlias = "slice | Sequence[int] | Sequence[bool] | np.ndarray | Tensor"


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ImageSet:
    """The data set D (Sec. 2): uint8 images, with an optional class each and the id of the image each one came from.

    Arrays are taken over without a copy, so memory-mapped pixels stay on disk; nothing here ever writes to them.
    Copies of one image (crops, flips) share its id, and leaving an id out leaves all of them out.
    """

    pixels: Tensor          # uint8 (N, C, H, W)
    labels: Tensor | None   # int64 (N,)
    ids: Tensor             # int64 (N,), arange(N) unless given
    name: str

    def __init__(self, pixels: Array, labels: Array | None = None, ids: Array | None = None, name: str = "images"):
        pixels = _as_tensor(pixels, "pixels")
        if pixels.dtype != torch.uint8:
            raise InputError(_wrong_dtype(pixels))
        if (recipe := _wrong_shape(pixels)) is not None:
            raise InputError(f"pixels must be N images of C channels, (N, C, H, W); got {_shape(pixels)}{recipe}")
        if not isinstance(name, str):
            raise InputError(f"name must be a text; got {show(name)}")
        count = len(pixels)
        object.__setattr__(self, "pixels", pixels.contiguous())
        object.__setattr__(self, "labels", None if labels is None else _classes(labels, count))
        object.__setattr__(self, "ids", torch.arange(count) if ids is None else _integers(ids, "ids", count))
        object.__setattr__(self, "name", name)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        classes = "no labels" if self.labels is None else f"{len(self.labels.unique())} classes"
        return f"ImageSet({self.name!r}: {len(self)} images of {'×'.join(map(str, self.shape))}, {classes})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        return tuple(self.pixels.shape[1:])  # pyright: ignore[reportReturnType]

    def read(self, index: Index) -> Tensor:
        """The pixels of `index`, uint8 (n, C, H, W): the way to go through a set that may be too large to hold."""
        return self.pixels[self._index(index)]

    def scaled(self, index: Index | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Images in [−1, 1] (App. C.2): (u − 127.5) / 127.5, all of them or those of `index`, (n, C, H, W)."""
        return self.read(slice(None) if index is None else index).to(dtype).sub_(127.5).div_(127.5)

    def subset(self, index: Index) -> ImageSet:
        """The images of `index` (slice, integers or booleans), with their labels and ids; a slice copies nothing."""
        chosen = self._index(index)
        labels = None if self.labels is None else self.labels[chosen]
        return ImageSet(self.read(chosen), labels, self.ids[chosen], self.name)

    def checksum(self) -> str:
        """SHA-256 of shape, pixels and labels: equal for equal images, whatever file they came from."""
        digest = hashlib.sha256(repr((len(self), *self.shape)).encode())
        for start in range(0, len(self), 4096):
            digest.update(self.read(slice(start, start + 4096)).cpu().numpy().data)
        if self.labels is not None:
            digest.update(self.labels.cpu().numpy().data)
        return digest.hexdigest()

    def recipe(self) -> dict[str, Any]:
        """What tells these images from others, as plain data; an augmented set says how it is made (App. B)."""
        return {"name": self.name, "count": len(self), "checksum": self.checksum()}

    def _index(self, index: Index) -> slice | Tensor:
        if isinstance(index, slice):
            return index
        chosen = _as_tensor(index, "index")
        if chosen.dtype == torch.bool and chosen.shape == (len(self),):
            return chosen
        if chosen.numel() == 0:
            chosen = chosen.long()
        if chosen.ndim != 1 or chosen.dtype.is_floating_point or chosen.dtype == torch.bool:
            raise InputError(
                f"an index of {len(self)} images is a slice, whole numbers, or {len(self)} booleans; "
                f"got {_shape(chosen)} of {_kind(chosen)}"
            )
        chosen = chosen.long()
        outside = chosen[(chosen < -len(self)) | (chosen >= len(self))]
        if len(outside):
            raise InputError(f"index {outside[0].item()} is outside the {len(self)} images of {self.name!r}")
        return chosen


def check_images(images: Any) -> ImageSet:
    """Images with their names, as everything that learns or counts wants them."""
    if not isinstance(images, ImageSet):
        what = repr(images)[:60] if isinstance(images, str) else type(images).__name__
        raise InputError(f"images are an ImageSet; got {what}; make one with load_images(…) or ImageSet(pixels)")
    return images


def _as_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        with warnings.catch_warnings():
            # Read-only memory maps are welcome: an ImageSet never writes to its pixels.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} must be an array or a tensor of numbers; got {type(value).__name__}{_hint(value)}"
        ) from error


def _hint(value: Any) -> str:
    return f"; load files and data sets with fpmc.load_images({show(value)})" if isinstance(value, str) else ""


def _integers(value: Any, what: str, count: int) -> Tensor:
    tensor = _as_tensor(value, what)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool or tensor.ndim != 1:
        raise InputError(f"{what} must be one whole number per image; got {_shape(tensor)} of {_kind(tensor)}")
    if len(tensor) != count:
        raise InputError(f"{what} must be one per image: got {len(tensor)} {what} for {count} images")
    whole = tensor.long()
    if tensor.dtype == torch.uint64 and bool((whole < 0).any()):
        large = int(whole[whole < 0][0]) + 2**64
        raise InputError(f"{what} must be below 2⁶³; got {large}; use smaller numbers")
    return whole


def _classes(value: Any, count: int) -> Tensor:
    labels = _integers(value, "labels", count)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= 2**31:
        raise InputError(
            f"labels are classes, 0 to 2³¹ − 1; got {low if low < 0 else high}; number the classes from 0, "
            "or leave the labels out"
        )
    return labels


def _wrong_shape(pixels: Tensor) -> str | None:
    """The likely mistake and its recipe; None for a shape that is right."""
    shape = tuple(pixels.shape)
    if 0 in shape:
        return ", which is empty; give at least one image"
    if len(shape) == 4:
        last = shape[1] > 4 >= shape[3] and shape[2] > 4
        return "; channels are last: give pixels.transpose(0, 3, 1, 2), or load_images(pixels)" if last else None
    if len(shape) == 2:
        return "; for one grey image give pixels[None, None]"
    if len(shape) == 3 and shape[0] <= 4:
        return "; for one image give pixels[None]"
    if len(shape) == 3 and shape[2] <= 4:
        return "; for one image with channels last give pixels.transpose(2, 0, 1)[None]"
    return "; for grey images give pixels[:, None]" if len(shape) == 3 else "; reshape them"


def _wrong_dtype(pixels: Tensor) -> str:
    said = f"pixels must be uint8 (0..255); got {_kind(pixels)}"
    if pixels.numel() == 0 or pixels.dtype.is_complex:
        return f"{said}; convert them first"
    if pixels.dtype == torch.bool:
        return f"{said}; make them with pixels.astype('uint8') * 255"
    if pixels.dtype.is_floating_point and not torch.isfinite(pixels).all():
        return f"{said} with NaN or infinite values; mend the data first"
    # Not every type has a minimum of its own, and doubles hold the range of all of them.
    low, high = pixels.double().min().item(), pixels.double().max().item()
    recipes = (
        ((0, 1), "from images x in [0, 1] make them with (x * 255).round() as uint8"),
        ((-1.5, 1.5), "from images x in [−1, 1] make them with ((x + 1) * 127.5).round().clip(0, 255) as uint8"),
        ((0, 255), "values 0…255 become bytes with x.round() as uint8"),
    )
    if not pixels.dtype.is_floating_point:
        recipes = (((0, 255), "they become bytes with pixels.astype('uint8')"),)
    fitting = (recipe for (least, most), recipe in recipes if least <= low and high <= most)
    return f"{said} in [{low:g}, {high:g}]; {next(fitting, 'bring them to 0…255 first')}"


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}"
