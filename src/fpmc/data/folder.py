"""Folders of image files, searched through and through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fpmc.errors import InputError
from fpmc.readers.source import read_bytes

from .pictures import Pictures, check_size, is_picture, match_labels
from .store import MEMBER, stamp


def claims(path: Path, head: bytes) -> bool:
    return path.is_dir()


def read(path: Path, split: str) -> Pictures:
    """The images below a folder in name order, with the labels of its `dataset.json` if it has one."""
    found = list(_walk(path))
    names = sorted(name.as_posix() for name in found if is_picture(str(name)))
    if not names:
        raise InputError(f"the folder holds no images (PNG, JPEG, BMP or WebP; {len(found)} other files)")
    paths = [path / name for name in names]
    index = path / "dataset.json"
    labels = None
    if index.is_file():
        check_size(index.stat().st_size, names)
        labels = match_labels(read_bytes(index, MEMBER), names)

    def files() -> Iterator[bytes]:
        return (read_bytes(file, MEMBER) for file in paths)

    packed = sum(file.stat().st_size for file in paths)
    return Pictures(names, files, labels, stamp(*paths), path.resolve().name, packed)


def _walk(path: Path) -> Iterator[Path]:
    """All files below a folder; what cannot be looked into is an error, not an absence."""

    def fail(error: OSError) -> None:
        raise error

    for folder, below, names in os.walk(path, onerror=fail):
        for name in below:
            if Path(folder, name).is_symlink() and not name.startswith("."):
                raise InputError(f"{name!r} in it is a link to a folder, which is not followed; copy that folder")
        yield from (Path(folder, name).relative_to(path) for name in names)


def claims_split(path: Path, head: bytes) -> bool:
    return (path / "train").is_dir() and (path / "test").is_dir()


def read_split(path: Path, split: str) -> Pictures:
    """The images of the subfolder `train` or `test`; test ids follow the train ids."""
    pictures = read(path / split, split)
    first = len(read(path / "train", "train")) if split == "test" else 0
    return replace(pictures, name=path.resolve().name, first_id=first)
