"""NumPy files: `.npy`, and `.npz` with images and perhaps labels."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.readers.arrays import MAGIC, npy_header, read_npy

from .store import believable, gather, stamp

IMAGES = ("images", "x", "arr_0")
LABELS = ("labels", "y")
BLOCK = 1024  # images turned from NHWC to NCHW at once


def claims(path: Path, head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(path: Path, split: str) -> ImageSet:
    """A `.npy` of uint8 images, NCHW, NHWC or NHW; NCHW is mapped as it lies."""
    array = read_npy(path, mapped=True)
    shape, last = layout(array.shape, array.dtype)
    if array.flags.c_contiguous and not last:
        pixels = array.reshape(shape)
    else:
        blocks = (array[start : start + BLOCK] for start in range(0, len(array), BLOCK))
        pixels = gather(shape, (_first(block) if last else block for block in blocks), stamp(path))
    return ImageSet(pixels, name=path.stem)


def claims_npz(path: Path, head: bytes) -> bool:
    if not (head.startswith(b"PK") and zipfile.is_zipfile(path)):
        return False
    with zipfile.ZipFile(path) as archive:
        return all(name.endswith(".npy") for name in archive.namelist())


def read_npz(path: Path, split: str) -> ImageSet:
    """A `.npz` with uint8 images under `images`, `x` or `arr_0`, and labels under `labels` or `y` if it has them."""
    with zipfile.ZipFile(path) as archive:
        images = _member(archive, IMAGES)
        if images is None:
            found = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
            raise InputError(f"the .npz needs images under one of {', '.join(IMAGES)}; it has {found or 'nothing'}")
        with archive.open(images) as file:
            stored, dtype = _header(file, images.filename)
        labels_at = _member(archive, LABELS)
        labels = None if labels_at is None else _whole(archive, labels_at)
    shape, last = layout(stored, dtype)
    believable(math.prod(shape), path.stat().st_size)

    def blocks() -> Iterator[np.ndarray]:
        with zipfile.ZipFile(path) as archive, archive.open(images) as file:
            _header(file, images.filename)
            size = math.prod(stored[1:])
            while data := file.read(BLOCK * size):
                flat = np.frombuffer(data, np.uint8)
                yield _first(flat.reshape(-1, *stored[1:])) if last and len(flat) % size == 0 else flat

    return ImageSet(gather(shape, blocks(), stamp(path)), labels, name=path.stem)


def _member(archive: zipfile.ZipFile, keys: Sequence[str]) -> zipfile.ZipInfo | None:
    found = next((f"{key}.npy" for key in keys if f"{key}.npy" in archive.namelist()), None)
    if found is None:
        return None
    info = archive.getinfo(found)
    believable(info.file_size, info.compress_size)
    return info


def _header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype]:
    try:
        shape, fortran, dtype = npy_header(file)
    except InputError as error:
        raise InputError(f"{name!r} is {error}") from error
    if fortran:
        raise InputError(f"{name!r} is stored in Fortran order; save np.ascontiguousarray of it")
    return shape, dtype


def _whole(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        shape, dtype = _header(file, info.filename)
        if dtype.kind not in "iu" or len(shape) != 1:
            raise InputError(f"labels are one whole number per image; {info.filename!r} is {shape} of {dtype}")
        content = file.read(shape[0] * dtype.itemsize + 1)
    if len(content) != shape[0] * dtype.itemsize:
        raise InputError(f"{info.filename!r} is cut short or too long for shape {shape}; save it again")
    return np.frombuffer(content, dtype).astype(dtype.newbyteorder("="))


def layout(shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, int, int, int], bool]:
    """(N, C, H, W) of an array as it lies on file, and whether its channels are last; 1 to 4 channels tell."""
    if dtype != np.uint8:
        raise InputError(f"pixels must be uint8 (0..255); the array is {dtype}: scale and round it to bytes first")
    if 0 in shape:
        raise InputError(f"the array has the empty shape {shape}; images are needed")
    if len(shape) == 4 and 1 <= shape[1] <= 4:
        return shape, False
    if len(shape) == 4 and 1 <= shape[3] <= 4:
        return (shape[0], shape[3], shape[1], shape[2]), True
    if len(shape) == 3 and shape[2] > 4:
        return (shape[0], 1, *shape[1:]), False
    raise InputError(f"images are (N, C, H, W), (N, H, W, C) or (N, H, W) with 1 to 4 channels; the array is {shape}")


def _first(block: np.ndarray) -> np.ndarray:
    return block.transpose(0, 3, 1, 2)
