"""The pickles of CIFAR-10's "python version", read without running them.

A pickle is a program. This reader lets it build dicts, lists, strings and one kind of object, a recording of the array
that NumPy would have built; every other name it asks for is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from fpmc.errors import InputError


class _Recorded:
    """Stands for `numpy.ndarray` or `numpy.dtype`: keeps what it is given, does nothing with it."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")  # how Python 3 writes bytes in old protocols


KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _Recorded,
    ("numpy._core.multiarray", "_reconstruct"): _Recorded,
    ("numpy", "ndarray"): _Recorded,
    ("numpy", "dtype"): _Recorded,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return KNOWN[module_name, global_name]
        except KeyError:
            raise InputError(
                f"the pickle asks for {module_name}.{global_name}, which no CIFAR-10 batch needs; it is not run"
            ) from None


def read_batch(data: bytes) -> np.ndarray:
    """One batch as the records of the binary version: label, then 3 × 32 × 32 bytes; uint8 (N, 3073)."""
    try:
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        batch = {_text(key): value for key, value in batch.items()}
        pixels, labels = _array(batch["data"]), np.frombuffer(bytes([*batch["labels"]]), np.uint8)
        return np.concatenate([labels[:, None], pixels.reshape(-1, 3072)], axis=1)
    except InputError:
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise InputError(f"it is not a CIFAR-10 python batch ({type(error).__name__}: {error})") from error


def _array(recorded: Any) -> np.ndarray:
    _, shape, dtype, fortran, data = recorded.state
    if not (isinstance(dtype, _Recorded) and _text(dtype.arguments[0]) == "u1" and not fortran):
        raise InputError("the data of a CIFAR-10 batch are bytes in C order; these are not")
    if math.prod(shape) != len(data):
        raise InputError(f"the data of the batch have {len(data)} bytes for shape {shape}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
