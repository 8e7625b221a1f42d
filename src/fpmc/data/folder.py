"""Folders of image files, searched through and through."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fpmc.errors import InputError

from .pictures import Pictures, is_picture, match_labels
from .store import MEMBER, stamp


def claims(path: Path, head: bytes) -> bool:
    return path.is_dir()


def read(path: Path, split: str) -> Pictures:
    """The images below a folder in name order, with the labels of its `dataset.json` if it has one."""
    found = [Path(folder, name).relative_to(path) for folder, _, names in os.walk(path) for name in names]
    names = sorted(name.as_posix() for name in found if is_picture(str(name)))
    if not names:
        raise InputError(f"the folder holds no images (PNG, JPEG, BMP or WebP; {len(found)} other files)")
    paths = [path / name for name in names]
    index = path / "dataset.json"
    labels = match_labels(index.read_bytes(), names) if index.is_file() else None

    def files() -> Iterator[bytes]:
        for file in paths:
            if file.stat().st_size > MEMBER:
                raise InputError(f"{file.name!r} has {file.stat().st_size:,} bytes; at most {MEMBER:,} are read")
            yield file.read_bytes()

    return Pictures(names, files, labels, stamp(*paths), path.resolve().name)


def claims_split(path: Path, head: bytes) -> bool:
    return (path / "train").is_dir() and (path / "test").is_dir()


def read_split(path: Path, split: str) -> Pictures:
    """The images of the subfolder `train` or `test`; test ids follow the train ids."""
    pictures = read(path / split, split)
    first = len(read(path / "train", "train")) if split == "test" else 0
    return replace(pictures, name=path.resolve().name, first_id=first)
