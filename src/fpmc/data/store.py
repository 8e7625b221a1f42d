"""Where decoded pixels go: memory when they are few, a memory-mapped file of the cache folder when they are many."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fpmc.errors import InputError
from fpmc.files import atomic, home, lock
from fpmc.readers.arrays import read_npy

LARGE = 64 * 2**20  # bytes of pixels from which a set is mapped, not held
MEMBER = 128 * 2**20  # bytes of the largest file believed inside an archive


def stamp(*paths: Path) -> str:
    """A name for what these files hold now: it changes when one of them is moved, resized or rewritten."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def gather(shape: tuple[int, ...], chunks: Iterable[np.ndarray], key: str) -> np.ndarray:
    """The uint8 array of `shape` whose bytes are the chunks', one after another.

    A large one is written to the cache once, under `key`; from then on the chunks are not asked for.
    """
    size = math.prod(shape)
    if size <= LARGE:
        pixels = np.empty(size, np.uint8)
        for start, chunk in _counted(chunks, size):
            pixels[start : start + chunk.size] = chunk
        return pixels.reshape(shape)
    name = hashlib.sha256(f"{key} {shape}".encode()).hexdigest()[:32]
    path = home() / "decoded" / f"{name}.npy"
    if not path.exists():
        held = lock(path.parent, wait=True)             # of several processes one decodes
        try:
            if not path.exists():
                _write(path, shape, chunks)
        finally:
            held.release()
    return read_npy(path, mapped=True)


def _write(path: Path, shape: tuple[int, ...], chunks: Iterable[np.ndarray]) -> None:
    size = math.prod(shape)
    with atomic(path) as part, part.open("wb") as file:
        free = shutil.disk_usage(part.parent).free
        if size > free:
            raise InputError(
                f"decoded, it takes {size / 2**30:.1f} GiB and the cache folder {str(home())!r} has "
                f"{free / 2**30:.1f} GiB free; set FPMC_HOME to a folder with more room"
            )
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _, chunk in _counted(chunks, size):
            file.write(chunk.data)


def _counted(chunks: Iterable[np.ndarray], size: int) -> Iterator[tuple[int, np.ndarray]]:
    start = 0
    for chunk in chunks:
        flat = np.ascontiguousarray(chunk).reshape(-1)
        if start + flat.size > size:
            raise InputError(f"it holds more than the {size:,} bytes of pixels it declares")
        yield start, flat
        start += flat.size
    if start != size:
        raise InputError(f"it ends early: {start:,} of {size:,} bytes of pixels; fetch it again")


def believable(size: int, packed: int) -> None:
    """Refuse a declared size that only a decompression bomb reaches: photographs do not shrink a hundredfold."""
    if size > 4 * LARGE and size > 100 * packed:
        raise InputError(
            f"it declares {size:,} bytes inside {packed:,} compressed ones: "
            "that is a decompression bomb or damage; unpack it yourself if you trust it"
        )
