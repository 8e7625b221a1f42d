"""CIFAR-10 as people keep it: python batches, binary batches, PNG sheets; in a folder or as one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fpmc.errors import InputError
from fpmc.images import ImageSet

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
    try:
        labels = np.frombuffer(bytes([*json.loads(files[index]())]), np.uint8)[rows : rows + SHEET]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"the sheets need their labels in {index}, a list of classes ({error})") from error
    if pixels.shape != (3, SHEET, 1024) or labels.shape != (SHEET,):
        raise InputError(f"{batch}.png is {pixels.shape} with labels {labels.shape}; a sheet is (3, {SHEET}, 1024)")
    return np.concatenate([labels[:, None], pixels.transpose(1, 0, 2).reshape(SHEET, 3072)], axis=1)


def _reader(path: Path) -> Callable[[], bytes]:
    def contents() -> bytes:
        if path.stat().st_size > MEMBER:
            raise InputError(f"{path.name} has {path.stat().st_size:,} bytes; no CIFAR-10 batch is that large")
        return path.read_bytes()

    return contents
