"""Find the reader of a name or a path."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fpmc.errors import InputError, show
from fpmc.images import ImageSet
from fpmc.readers.source import is_there, open_file, reading

from . import arrays, cifar_files, edm_zip, folder, idx
from .cifar10 import load_cifar10
from .fashion import load_fashion, load_fashion_full
from .memory import Images, from_memory
from .pictures import Pictures


class Format(NamedTuple):
    """A reader, how it knows its files by their first bytes, and whether they hold a train and a test split."""

    kind: str
    claims: Callable[[Path, bytes], bool]
    read: Callable[[Path, str], ImageSet | Pictures]
    splits: bool = False


NAMES: dict[str, Callable[[str], ImageSet]] = {
    "cifar10": load_cifar10,
    "fashion": load_fashion,
    "fashion-full": load_fashion_full,
}
FORMATS = (  # the first that claims a path reads it
    Format(".npy file", arrays.claims, arrays.read),
    Format(".npz file", arrays.claims_npz, arrays.read_npz),
    Format("EDM zip", edm_zip.claims, edm_zip.read),
    Format("IDX file", idx.claims, idx.read),
    Format("CIFAR-10 batch", cifar_files.claims, cifar_files.read),
    Format("folder of IDX files", idx.claims_folder, idx.read_folder, splits=True),
    Format("folder of CIFAR-10 batches or sheets", cifar_files.claims_folder, cifar_files.read_folder, splits=True),
    Format("folder with train and test", folder.claims_split, folder.read_split, splits=True),
    Format("folder of images", folder.claims, folder.read),
)


def load_images(source: Images, split: str = "train") -> ImageSet:
    """The data sets of the paper and yours (App. C.2): a shipped name, or a path that is known by its content.

    Also what is in memory already: a uint8 array or tensor, (N, C, H, W), (N, H, W, C) or (N, H, W), or a list of PIL
    images or arrays of one image each.

    Names: "fashion" (in the package), "fashion-full", "cifar10". Paths: an EDM zip, a folder of images, `.npy`, `.npz`,
    IDX files, CIFAR-10 batches. More than 64 MiB of pixels are decoded once and memory-mapped from then on.
    """
    found = open_images(source, split)
    if isinstance(found, ImageSet):
        return found
    with reading(str(source)):
        return found.stack()


def open_images(source: Images, split: str = "train") -> ImageSet | Pictures:
    """What `load_images` loads, with image files not decoded yet: those may still differ in size."""
    if split not in ("train", "test"):
        raise InputError(f"split must be 'train' or 'test'; got {split!r}")
    if isinstance(source, ImageSet):
        return source
    if not isinstance(source, str | os.PathLike):
        return from_memory(source)
    if source in NAMES:
        return NAMES[str(source)](split)
    path = Path(source).expanduser()
    if not is_there(path) or not os.fspath(source):
        named = show(str(source), 200)
        raise InputError(f"no images {named}: neither a file or folder here nor one of {', '.join(NAMES)}")
    with reading(path):
        head = _head(path)
        reader = next((reader for reader in FORMATS if reader.claims(path, head)), None)
        if reader is None:
            raise InputError(
                f"of no known kind (it starts with {head[:8].hex(' ') or 'nothing'}); known are "
                f"{', '.join(reader.kind for reader in FORMATS)}"
            )
        if split == "test" and not reader.splits:
            raise InputError(f"a {reader.kind} has no test split; give the path of the test images by itself")
        return reader.read(path, split)


def _head(path: Path) -> bytes:
    """The first bytes of a file, unpacked if it is gzipped; of a folder, none."""
    if path.is_dir():
        return b""
    with open_file(path) as file:
        head = file.read(64)
    if not head.startswith(b"\x1f\x8b"):
        return head
    with gzip.open(path) as file:
        return file.read(64)
