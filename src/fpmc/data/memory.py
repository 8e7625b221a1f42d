"""Images that are in memory already: arrays, tensors, and lists of PIL images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from PIL import Image
from torch import Tensor

from fpmc.errors import InputError, show
from fpmc.images import ImageSet

from .arrays import layout

Images: TypeAlias = "str | os.PathLike[str] | ImageSet | np.ndarray | Tensor | Sequence[Any]"


def from_memory(source: Any) -> ImageSet:
    """A set of a uint8 array or tensor in any of the layouts of `.npy` files, or of a list of images."""
    if isinstance(source, list | tuple):
        source = _stacked(source)
    if isinstance(source, Image.Image):
        raise InputError("one PIL image is not a data set; give a list of them, e.g. load_images([picture])")
    if not isinstance(source, np.ndarray | Tensor):
        raise InputError(f"load_images takes a name, a path, an array or a list of images; got {show(source)}")
    if str(source.dtype).removeprefix("torch.") != "uint8" or source.ndim not in (3, 4):
        return ImageSet(source)  # which says what is wrong, and the recipe
    shape, last = layout(tuple(source.shape), np.dtype(np.uint8))
    if not last:
        return ImageSet(source.reshape(shape))
    return ImageSet(source.permute(0, 3, 1, 2) if isinstance(source, Tensor) else source.transpose(0, 3, 1, 2))


def _stacked(images: Sequence[Any]) -> np.ndarray:
    if not images:
        raise InputError("the list holds no images; give at least one")
    arrays = []
    for number, image in enumerate(images):
        if isinstance(image, Image.Image) and image.mode not in ("L", "RGB"):
            raise InputError(f"image {number} has mode {image.mode!r}; make it 8-bit with image.convert('RGB')")
        if not isinstance(image, Image.Image | np.ndarray | Tensor):
            raise InputError(f"item {number} of the list is {show(image)}; a PIL image or an array belongs there")
        arrays.append(image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image))
        if (arrays[-1].shape, arrays[-1].dtype) != (arrays[0].shape, arrays[0].dtype):
            raise InputError(
                f"images differ: the first is {arrays[0].shape} of {arrays[0].dtype}, image {number} is "
                f"{arrays[-1].shape} of {arrays[-1].dtype}; make them alike"
            )
    return np.stack(arrays)
