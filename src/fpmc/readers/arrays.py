"""`.npy`: the header is checked against the bytes that are there before NumPy makes anything of it."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fpmc.errors import InputError, in_short
from fpmc.readers.source import open_file, reading, size_of

MAGIC = b"\x93NUMPY"
MOST_DIMENSIONS = 8
PLAIN = "biuf"  # booleans and numbers


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def npy_header(file: IO[bytes]) -> Header:
    """What a `.npy` says it holds; nothing but plain numbers of a possible shape passes."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise InputError(f"it is of version {version[0]}.{version[1]}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
    except Exception as error:  # the header is Python text, and breaks as such
        raise InputError(f"not a plain array of numbers, or cut short ({in_short(error)}); save it again") from error
    if dtype.hasobject or dtype.kind not in PLAIN or dtype.subdtype is not None:
        raise InputError(f"not a plain array of numbers: its type is {str(dtype)[:60]}; save plain numbers")
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or not 0 <= n < 2**40 for n in shape):
        raise InputError(f"not a plain array: its shape is {str(shape)[:60]}; save it again")
    return Header(shape, fortran, dtype)


def read_npy(path: str | os.PathLike[str], *, mapped: bool = False) -> np.ndarray:
    """The array of a `.npy`, in memory or mapped read-only as it lies; never more than the file holds."""
    with reading(path):
        with open_file(path) as file:
            header = npy_header(file)
            start, there = file.tell(), size_of(file)
            if there - start != header.size:
                raise InputError(
                    f"it is cut short or not a plain array: shape {header.shape} of {header.dtype} takes "
                    f"{header.size:,} bytes and it has {there - start:,}; fetch or make it again"
                )
            if not mapped or header.size == 0:
                array = np.fromfile(file, header.dtype, math.prod(header.shape))
                return array.reshape(header.shape, order="F" if header.fortran else "C")
        order = "F" if header.fortran else "C"
        return np.memmap(Path(path), header.dtype, "r", start, header.shape, order)
