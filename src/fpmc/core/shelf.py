"""Results that take minutes and depend on the images alone, kept on disk by their content.

A file is whole or absent, carries the checksum of what is in it, and is made again if that does not match. The least
recently used files go when the folder grows beyond its limit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fpmc import files
from fpmc.errors import InputError

LIMIT = 6 << 30                                         # bytes


def folder() -> Path:
    """Where they are: in the cache folder."""
    return files.home() / "gaussian"


def key_of(*parts: object) -> str:
    """A name for what is made of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def take(key: str) -> dict[str, Tensor] | None:
    """The tensors kept under a key; None where there are none or they are damaged."""
    path = folder() / f"{key}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
            checksum = (file.metadata() or {}).get("checksum")
    except (OSError, SafetensorError, ValueError):
        return None
    if checksum != _checksum(tensors):
        return None
    with suppress(OSError):
        os.utime(path)                                  # it was used now
    return tensors


def keep(key: str, tensors: Mapping[str, Tensor]) -> None:
    """Keep them, if the disk takes them; what was used least recently goes."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > LIMIT:
        return
    with suppress(OSError, SafetensorError, InputError):  # a full or foreign disk keeps nothing
        _make_room(size)
        with files.atomic(folder() / f"{key}.safetensors") as path:
            save_file(tensors, path, {"checksum": _checksum(tensors)})


def _make_room(size: int) -> None:
    found = sorted(folder().glob("*.safetensors"), key=lambda entry: entry.stat().st_mtime)
    used = sum(entry.stat().st_size for entry in found)
    for entry in found:
        if used + size <= LIMIT:
            return
        used -= entry.stat().st_size
        entry.unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(repr((name, tuple(tensors[name].shape), str(tensors[name].dtype))).encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
