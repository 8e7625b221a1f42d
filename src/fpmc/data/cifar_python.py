"""The pickles of CIFAR-10's "python version", read by the pickle machine without calls."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from fpmc.errors import InputError, in_short
from fpmc.readers.pickles import Bounded, Maker, Record, Refused, expect, interpret, make_bytes, make_dtype

MAKERS: dict[str, Maker] = {
    "numpy.core.multiarray._reconstruct": lambda source, *arguments: Record("array"),
    "numpy._core.multiarray._reconstruct": lambda source, *arguments: Record("array"),
    "numpy.ndarray": lambda source, *arguments: Record("array"),
    "numpy.dtype": make_dtype,
    "_codecs.encode": make_bytes,
}


def read_batch(data: bytes) -> np.ndarray:
    """One batch as the records of the binary version: label, then 3 × 32 × 32 bytes; uint8 (N, 3073)."""
    try:
        batch = expect(interpret(Bounded(io.BytesIO(data), len(data)), MAKERS), dict)
        batch = {_text(name): value for name, value in batch.items()}
        if not {"data", "labels"} <= batch.keys():
            raise InputError("it is not a CIFAR-10 python batch: data or labels are missing")
        pixels, labels = _array(batch["data"]), _labels(batch["labels"])
    except Refused as error:
        why = in_short(error).replace("it asks", "the pickle asks")
        raise InputError(f"it is not a CIFAR-10 python batch: {why}; it is not run") from error
    if pixels.ndim != 2 or pixels.shape[1] != 3072 or len(pixels) != len(labels):
        raise InputError(
            f"it is not a CIFAR-10 python batch: data {pixels.shape} for {len(labels)} labels; (N, 3072) for N belong"
        )
    return np.concatenate([labels[:, None], pixels], axis=1)


def _array(recorded: Any) -> np.ndarray:
    state = expect(expect(recorded, Record).state, tuple)
    if len(state) != 5:
        raise Refused("its array is incomplete")
    _, shape, dtype, fortran, content = state
    if dtype != np.dtype("u1") or fortran:
        raise InputError("the data of a CIFAR-10 batch are bytes in C order; these are not")
    content = content.encode("latin1") if isinstance(content, str) else expect(content, bytes)
    if any(expect(n, int) < 0 for n in expect(shape, tuple)) or math.prod(shape) != len(content):
        raise InputError(f"the data of the batch have {len(content)} bytes for shape {str(shape)[:60]}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _labels(labels: Any) -> np.ndarray:
    strange = next((label for label in expect(labels, list) if type(label) is not int or not 0 <= label <= 9), None)
    if strange is not None:
        raise InputError(f"the labels of a CIFAR-10 batch are 0 to 9; one is {str(strange)[:20]}")
    return np.array(labels, np.uint8)


def _text(name: Any) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else expect(name, str)
