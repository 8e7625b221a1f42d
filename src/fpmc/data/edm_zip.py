"""EDM zips: image files, and a `dataset.json` with their classes or none."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fpmc.errors import InputError

from .pictures import Pictures, check_size, is_picture, match_labels
from .store import MEMBER, stamp


def claims(path: Path, head: bytes) -> bool:
    return head.startswith(b"PK")


def read(path: Path, split: str) -> Pictures:
    """The images of a zip; nothing is ever unpacked to disk by its own name."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise InputError("the zip holds two files of one name; make it again")
        for info in members.values():
            _check(info)
        names = sorted(filter(is_picture, members))
        if not names:
            raise InputError(f"the zip holds no images ({len(members)} other files)")
        for name in members.keys() - set(names):
            archive.open(members[name]).close()  # fails where a damaged name would hide the labels
        labels = None
        if "dataset.json" in members:
            check_size(members["dataset.json"].file_size, names)
            labels = match_labels(archive.read("dataset.json"), names)

    def files() -> Iterator[bytes]:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                yield archive.read(members[name])

    return Pictures(names, files, labels, stamp(path), path.stem, path.stat().st_size)


def _check(info: zipfile.ZipInfo) -> None:
    name = info.filename
    if name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
        raise InputError(f"the zip holds the unsafe path {name[:100]!r}; make it again with plain relative names")
    if info.flag_bits & 1:
        raise InputError(f"{name!r} in the zip is encrypted; make the zip again without a password")
    if info.file_size > MEMBER:  # zipfile never yields more than this declared size
        raise InputError(f"{name!r} in the zip declares {info.file_size:,} bytes; at most {MEMBER:,} are read")
