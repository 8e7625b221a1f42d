"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fpmc.errors import InputError
from fpmc.images import ImageSet

from .store import believable, gather, stamp

PREFIX = {"train": "train", "test": "t10k"}


def claims(path: Path, head: bytes) -> bool:
    return head.startswith(b"\0\0\x08")


def read(path: Path, split: str) -> ImageSet:
    """One file of images, with the labels of its companion (`images` → `labels`, `idx3` → `idx1`) if it is there."""
    pixels = array(path)
    if pixels.ndim != 3:
        raise InputError(f"IDX images have 3 dimensions, (N, H, W); got {pixels.shape}: is it a file of labels?")
    companion = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = array(companion) if companion != path and companion.is_file() else None
    return ImageSet(pixels[:, None], labels, name=path.name.split(".")[0])


def claims_folder(path: Path, head: bytes) -> bool:
    return any(_find(path, prefix, "images", 3) for prefix in PREFIX.values())


def read_folder(path: Path, split: str) -> ImageSet:
    """A folder of the four standard files; test ids follow the train ids."""
    images = _find(path, PREFIX[split], "images", 3)
    labels = _find(path, PREFIX[split], "labels", 1)
    if images is None or labels is None:
        raise InputError(f"the folder lacks {PREFIX[split]}-images-idx3-ubyte or {PREFIX[split]}-labels-idx1-ubyte")
    train = _find(path, PREFIX["train"], "images", 3)
    first = _header(train)[0] if train and split == "test" else 0
    pixels = array(images)[:, None]
    return ImageSet(pixels, array(labels), np.arange(first, first + len(pixels)), path.resolve().name)


def array(path: Path) -> np.ndarray:
    """The uint8 array of one IDX file; a plain file is mapped, not read."""
    shape = _header(path)
    start, size, packed = 4 + 4 * len(shape), math.prod(shape), path.stat().st_size
    if not _gzipped(path):
        if packed != start + size:
            raise InputError(f"{path.name} should have {start + size:,} bytes for shape {shape}; it has {packed:,}")
        return np.memmap(path, np.uint8, "r", start, shape)
    believable(size, packed)

    def chunks() -> Iterator[np.ndarray]:
        with gzip.open(path) as file:
            file.seek(start)
            while block := file.read(2**20):
                yield np.frombuffer(block, np.uint8)

    return gather(shape, chunks(), stamp(path))


def _header(path: Path) -> tuple[int, ...]:
    with gzip.open(path) if _gzipped(path) else path.open("rb") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
            raise InputError(f"{path.name} is not an IDX file of bytes (it starts with {magic.hex(' ')})")
        sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise InputError(f"{path.name} ends inside its header")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    if 0 in shape:
        raise InputError(f"{path.name} declares the empty shape {shape}")
    return shape


def _gzipped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _find(folder: Path, prefix: str, kind: str, dimensions: int) -> Path | None:
    names = (f"{prefix}-{kind}{dash}idx{dimensions}-ubyte{end}" for dash in "-." for end in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)
