"""CIFAR-10 as people keep it: python batches, binary batches, PNG sheets; in a folder or as one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.readers.source import read_bytes, reading
from fpmc.readers.text import parse_json

from . import cifar_python
from .pictures import decode
from .store import MEMBER, gather, stamp

BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
RECORD = 1 + 3 * 32 * 32  # label, red, green, blue
SHEET = 10_000  # images of one sheet, a row each
NAMES = {f"{batch}{end}" for split in BATCHES.values() for batch in split for end in ("", ".bin", ".png")}
NAMES |= {"train_lables.json", "test_lables.json"}  # spelt as in the package

Files = Mapping[str, Callable[[], bytes]]  # name without folder → contents


def claims(path: Path, head: bytes) -> bool:
    pickled = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    return pickled or (path.suffix == ".bin" and path.is_file())


def read(path: Path, split: str) -> ImageSet:
    """One python or binary batch."""
    files = {path.name: _reader(path)}
    records = read_batch(files, path.name.removesuffix(".bin"))
    return ImageSet(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], name=path.stem)


def claims_folder(path: Path, head: bytes) -> bool:
    return any((path / f"{BATCHES['train'][0]}{end}").is_file() for end in ("", ".bin", ".png"))


def read_folder(path: Path, split: str) -> ImageSet:
    """A folder of batches or sheets; test ids follow the 50,000 train ids."""
    files = files_of(path)
    records = np.concatenate([read_batch(files, batch) for batch in BATCHES[split]])
    shape = (len(records), 3, 32, 32)
    pixels = gather(shape, [records[:, 1:]], f"{stamp(*(path / name for name in files))} {split}")
    first = 50_000 if split == "test" else 0
    return ImageSet(pixels, records[:, 0], np.arange(first, first + len(records)), path.resolve().name)


def files_of(folder: Path) -> Files:
    """The files of a folder that may belong to CIFAR-10, by name."""
    return {path.name: _reader(path) for path in sorted(folder.iterdir()) if path.name in NAMES and path.is_file()}


def read_batch(files: Files, batch: str) -> np.ndarray:
    """The records of one batch, uint8 (N, 3073), from whichever of the three forms is there."""
    if f"{batch}.bin" in files:
        records = _binary(files[f"{batch}.bin"](), batch)
    elif batch in files:
        records = cifar_python.read_batch(files[batch]())
    elif f"{batch}.png" in files:
        records = _sheet(files, batch)
    else:
        raise InputError(f"CIFAR-10's batch {batch!r} is missing (as {batch}, {batch}.bin or {batch}.png)")
    if not len(records):
        raise InputError(f"{batch!r} is empty; fetch it again")
    if records[:, 0].max() > 9:
        raise InputError(f"{batch!r} has labels above 9: it is not a batch of CIFAR-10")
    return records


def _binary(data: bytes, batch: str) -> np.ndarray:
    if not data or len(data) % RECORD:
        raise InputError(f"{batch}.bin has {len(data):,} bytes, not a whole number of {RECORD}-byte records")
    return np.frombuffer(data, np.uint8).reshape(-1, RECORD)


def _sheet(files: Files, batch: str) -> np.ndarray:
    """A sheet of the npm package: 10,000 rows of 1,024 RGB pixels."""
    split = "test" if batch in BATCHES["test"] else "train"
    index, rows = f"{split}_lables.json", SHEET * BATCHES[split].index(batch)
    pixels = decode(files[f"{batch}.png"](), f"{batch}.png")  # (3, N, 1024)
    if index not in files:
        raise InputError(f"the sheets need their labels in {index}, which is missing")
    with reading(f"labels in {index}"):
        classes = parse_json(files[index](), kind=list)
    if len(classes) < rows + SHEET or any(type(each) is not int or not 0 <= each <= 9 for each in classes):
        raise InputError(f"the sheets need their labels in {index}, a list of {rows + SHEET:,} classes from 0 to 9")
    labels = np.array(classes[rows : rows + SHEET], np.uint8)
    if pixels.shape != (3, SHEET, 1024) or labels.shape != (SHEET,):
        raise InputError(f"{batch}.png is {pixels.shape} with labels {labels.shape}; a sheet is (3, {SHEET}, 1024)")
    return np.concatenate([labels[:, None], pixels.transpose(1, 0, 2).reshape(SHEET, 3072)], axis=1)


def _reader(path: Path) -> Callable[[], bytes]:
    return partial(read_bytes, path, MEMBER)
