"""Image files, wherever they lie: decoded one by one, then stacked."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from fpmc.errors import InputError, in_short, show
from fpmc.images import ImageSet
from fpmc.readers.source import read_bytes, reading
from fpmc.readers.text import parse_json

from .store import MEMBER, believable, gather

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # no decoder that starts a program or is seldom looked after
MAX_PIXELS = 2**24  # 4096 × 4096


@dataclass(frozen=True)
class Pictures:
    """Image files in name order, not yet decoded and perhaps of different sizes."""

    names: Sequence[str]
    files: Callable[[], Iterator[bytes]]    # their contents, in the order of the names
    labels: Sequence[int] | None
    stamp: str                              # changes when the files do
    name: str
    packed: int                             # bytes of all of them
    first_id: int = 0

    def __len__(self) -> int:
        return len(self.names)

    def decoded(self) -> Iterator[np.ndarray]:
        """One uint8 (C, H, W) after another."""
        files = tqdm(self.files(), total=len(self), desc=f"decoding {self.name}", unit="", delay=1, disable=None)
        for data, name in zip(files, self.names):
            yield decode(data, name)

    def stack(self) -> ImageSet:
        """All of them as one set; large ones are decoded once and then memory-mapped."""
        images = self.decoded()
        first = next(images)
        believable(len(self) * first.size, self.packed)
        same = (self._same(first, image, name) for image, name in zip(images, self.names[1:]))
        pixels = gather((len(self), *first.shape), chain([first], same), self.stamp)
        ids = np.arange(self.first_id, self.first_id + len(self))
        return ImageSet(pixels, self.labels, ids, self.name)

    def _same(self, first: np.ndarray, image: np.ndarray, name: str) -> np.ndarray:
        if image.shape != first.shape:
            raise InputError(
                f"images differ in shape: {self.names[0]!r} is {_size(first)}, {name!r} is {_size(image)}; "
                "make them alike with `fpmc data pack --crop square --resize SIZE`"
            )
        return image


def is_picture(name: str) -> bool:
    """Whether a file of this name is taken for an image: hidden files and macOS's shadow folders are not."""
    path = PurePath(name)
    return path.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


def read_picture(path: str | os.PathLike[str]) -> np.ndarray:
    """One image file as uint8 (C, H, W)."""
    with reading(path):
        return decode(read_bytes(path, MEMBER), PurePath(path).name)


def decode(data: bytes, name: str) -> np.ndarray:
    """One 8-bit grey or RGB image as uint8 (C, H, W); any other mode is refused, never converted in silence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is tighter
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
        if picture.width * picture.height > MAX_PIXELS:
            raise InputError(f"{name!r} declares {picture.height}×{picture.width} pixels; more than {MAX_PIXELS:,}")
        _check_mode(picture, data, name)
        return np.ascontiguousarray(np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1))
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{name!r} declares too many pixels ({error})") from error
    except Exception as error:  # Pillow's decoders fail in many ways on damaged files
        why = in_short(error)
        raise InputError(f"{name!r} cannot be decoded as PNG, JPEG, BMP or WebP ({why}); is it whole?") from error


def _check_mode(picture: Image.Image, data: bytes, name: str) -> None:
    if picture.format in ("PNG", "WEBP") and getattr(picture, "n_frames", 1) > 1:
        raise InputError(f"{name!r} is an animation; save one frame of it as an image")
    deep = picture.format == "PNG" and data[24] > 8  # Pillow would drop the low byte of 16-bit colour
    if deep or picture.mode not in ("L", "RGB") or "transparency" in picture.info:
        kind = {"P": "palette", "1": "1-bit", "RGBA": "alpha", "LA": "alpha", "PA": "alpha", "CMYK": "CMYK"}
        what = "16-bit" if deep else kind.get(picture.mode, f"{picture.mode} with transparency")
        raise InputError(
            f"{name!r} is a {what} image (mode {picture.mode}); only 8-bit grey and RGB are read: "
            "convert it first, e.g. with PIL.Image.open(...).convert('RGB')"
        )


def check_size(size: int, names: Sequence[str]) -> None:
    """Refuse a dataset.json that is larger than these names can make it, before it is read."""
    most = 2**20 + sum(64 + 6 * len(name) for name in names)  # a letter may be written as \u1234
    if size > most:
        raise InputError(f"dataset.json has {size:,} bytes; for {len(names):,} images at most {most:,} are read")


def match_labels(text: bytes, names: Sequence[str]) -> list[int] | None:
    """The labels of `dataset.json` (EDM) in the order of the names: {"labels": [[name, class], ...]}, or null."""
    wanted = 'dataset.json is not {"labels": [[name, class], ...]} or {"labels": null}'
    try:
        content = parse_json(text, kind=dict)
    except InputError as error:
        raise InputError(f"{wanted}: {error}") from error
    pairs: Any = content.get("labels", ())
    if pairs is None:
        return None
    if type(pairs) is not list or any(type(p) is not list or len(p) != 2 or type(p[0]) in (list, dict) for p in pairs):
        raise InputError(f"{wanted}; mend it, or delete it to have no labels")
    classes = dict(pairs)
    if len(classes) < len(pairs):
        raise InputError("dataset.json names an image twice; mend it, or delete it to have no labels")
    strange = next((label for label in classes.values() if type(label) is not int or not 0 <= label < 2**31), None)
    if strange is not None:
        raise InputError(f"dataset.json gives a label {str(strange)[:40]!r}; labels are whole numbers, 0 to 2³¹ − 1")
    missing, unknown = set(names) - classes.keys(), classes.keys() - set(names)
    if missing or unknown:
        example = min(missing or unknown, key=str)
        raise InputError(
            f"dataset.json does not match the images: {len(missing)} images without a label, "
            f"{len(unknown)} labels without an image, e.g. {show(example)}"
        )
    return [classes[name] for name in names]


def _size(image: np.ndarray) -> str:
    return "×".join(map(str, image.shape))
