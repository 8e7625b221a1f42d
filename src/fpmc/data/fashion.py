"""The shipped names "fashion" (in the package) and "fashion-full" (IDX files on this machine)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fpmc.errors import InputError
from fpmc.files import home
from fpmc.images import ImageSet
from fpmc.readers.source import reading

from . import idx

EMBEDDED = Path(__file__).parent / "embedded"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


def load_fashion(split: str) -> ImageSet:
    """12,000 train or 2,000 test images of Fashion-MNIST, as many of each class, made by scripts/make_embedded.py.

    Ids count the official files: train image i is i, test image i is 60,000 + i, here and in "fashion-full".
    """
    with np.load(EMBEDDED / f"fashion-{split}.npz", allow_pickle=False) as file:
        return ImageSet(file["images"][:, None], file["labels"], file["ids"], "fashion")


def load_fashion_full(split: str) -> ImageSet:
    """All 60,000 train or 10,000 test images of Fashion-MNIST."""
    folders = (home() / "fashion-mnist", DEBIAN)
    folder = next((folder for folder in folders if idx.claims_folder(folder, b"")), None)
    if folder is None:
        raise InputError(
            f"Fashion-MNIST's four IDX files (train-images-idx3-ubyte.gz, ...) are neither in {str(folders[0])!r} nor "
            f"in {str(DEBIAN)!r}; put them in the first, or install the Debian package dataset-fashion-mnist"
        )
    with reading(folder):
        return replace(idx.read_folder(folder, split), name="fashion-full")
