"""Write EDM zips."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from PIL import Image
from tqdm import tqdm

from fpmc.errors import InputError
from fpmc.files import atomic
from fpmc.images import ImageSet
from fpmc.readers.source import reading

from .load import open_images
from .pictures import Pictures

Size: TypeAlias = "int | tuple[int, int]"  # one side of a square, or (H, W)
Crop: TypeAlias = "tuple[int, int] | Literal['square']"


def pack(
    images: ImageSet | str | os.PathLike[str],  # a set, or what load_images takes
    path: str | os.PathLike[str],
    *,
    split: str = "train",
    crop: Size | Literal["square"] | None = None,  # centred; "square" is the largest that fits
    resize: Size | None = None,  # after the crop, by Lanczos filtering
) -> Path:
    """Write images as an EDM zip, the form in which FFHQ and AFHQ are read (App. C.2).

    The zip holds `00000/img00000000.png`, ... and `dataset.json` with the labels or null. Image files of different
    sizes are welcome if crop and resize make them alike. The same images give the same bytes.
    """
    path = Path(path)
    if path.suffix != ".zip":
        raise InputError(f"an EDM zip is called something.zip; got {str(path)!r}")
    window = "square" if crop == "square" else _sides(crop, "crop")
    sides = _sides(resize, "resize")
    found = images if isinstance(images, ImageSet) else open_images(images, split)
    names = [f"{number // 1000:05d}/img{number:08d}.png" for number in range(len(found))]
    with atomic(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        first = None
        for name, picture in zip(names, _pictures(found)):
            picture = _fit(picture, window, sides)
            first = first or picture
            if (picture.mode, picture.size) != (first.mode, first.size):
                raise InputError(
                    f"image {names.index(name)} of {found.name!r} is {_kind(picture)}, the first is {_kind(first)}; "
                    "make them alike, e.g. with --crop square --resize SIZE"
                )
            data = io.BytesIO()
            picture.save(data, "PNG", compress_level=0)  # quick to read; as large as the pixels
            _add(archive, name, data.getvalue())
        labels = None if found.labels is None else [[name, int(label)] for name, label in zip(names, found.labels)]
        _add(archive, "dataset.json", json.dumps({"labels": labels}).encode())
    return path


def _pictures(found: ImageSet | Pictures) -> Iterator[Image.Image]:
    if isinstance(found, Pictures):
        with reading(found.name):
            yield from map(_picture, found.decoded())
    else:
        with tqdm(total=len(found), desc=f"packing {found.name}", unit="", delay=1, disable=None) as bar:
            for start in range(0, len(found), 1024):
                for image in found.read(slice(start, start + 1024)):
                    yield _picture(image.cpu().numpy())
                    bar.update()


def _picture(image: np.ndarray) -> Image.Image:
    if len(image) not in (1, 3):
        raise InputError(f"an EDM zip holds images of 1 or 3 channels; these have {len(image)}")
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))


def _fit(picture: Image.Image, crop: Crop | None, resize: tuple[int, int] | None) -> Image.Image:
    width, height = picture.size
    if crop is not None:
        high, wide = (min(height, width),) * 2 if crop == "square" else crop
        if high > height or wide > width:
            raise InputError(f"cannot crop {high}×{wide} out of an image of {height}×{width}; crop less")
        left, top = (width - wide) // 2, (height - high) // 2
        picture = picture.crop((left, top, left + wide, top + high))
    if resize is not None and picture.size != (resize[1], resize[0]):
        picture = picture.resize((resize[1], resize[0]), Image.Resampling.LANCZOS)
    return picture


def _sides(size: Size | str | None, what: str) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2 or any(type(side) is not int or not 1 <= side <= 4096 for side in sides):
        raise InputError(f"{what} must be a side or (height, width) in pixels, 1 to 4096; got {size!r}")
    return sides  # pyright: ignore[reportReturnType]


def _kind(picture: Image.Image) -> str:
    return f"{picture.mode} {picture.height}×{picture.width}"


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name)  # with its fixed date, so that equal images give equal zips
    member.external_attr = 0o644 << 16
    archive.writestr(member, data)
