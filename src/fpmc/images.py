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

from fpmc.errors import InputError

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
        if pixels.ndim != 4 or 0 in pixels.shape:
            raise InputError(
                f"pixels must be N images of C channels, (N, C, H, W), none of them 0; got {_shape(pixels)}"
            )
        count = len(pixels)
        object.__setattr__(self, "pixels", pixels.contiguous())
        object.__setattr__(self, "labels", None if labels is None else _integers(labels, "labels", count))
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
        raise InputError(f"{what} must be an array or a tensor of numbers; got {type(value).__name__}") from error


def _integers(value: Any, what: str, count: int) -> Tensor:
    tensor = _as_tensor(value, what)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool or tensor.ndim != 1:
        raise InputError(f"{what} must be one whole number per image; got {_shape(tensor)} of {_kind(tensor)}")
    if len(tensor) != count:
        raise InputError(f"{what} must be one per image: got {len(tensor)} {what} for {count} images")
    return tensor.long()


def _wrong_dtype(pixels: Tensor) -> str:
    if not pixels.dtype.is_floating_point or pixels.numel() == 0:
        return f"pixels must be uint8 (0..255); got {_kind(pixels)}; convert them first"
    if not torch.isfinite(pixels).all():
        return f"pixels must be uint8 (0..255); got {_kind(pixels)} with NaN or infinite values; mend the data first"
    low, high = pixels.min().item(), pixels.max().item()
    return (
        f"pixels must be uint8 (0..255); got {_kind(pixels)} in [{low:g}, {high:g}]; "
        "from images x in [−1, 1] make them with ((x + 1) * 127.5).round().clip(0, 255) as uint8"
    )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}"
