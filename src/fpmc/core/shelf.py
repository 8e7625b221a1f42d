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
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fpmc import files
from fpmc.errors import InputError

LIMIT = 6 << 30                                         # bytes


class Kept(NamedTuple):
    """A file on the shelf."""

    path: Path
    size: int                                           # bytes
    used: float                                         # when last, seconds since 1970

    def what(self) -> str:
        """What is in it, as it was told when it was kept."""
        try:
            with safe_open(self.path, framework="pt") as file:
                return (file.metadata() or {}).get("what", "kept by an earlier version")
        except (OSError, SafetensorError, ValueError):
            return "damaged; it will be made again"


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


def keep(key: str, tensors: Mapping[str, Tensor], what: str) -> None:
    """Keep them, if the disk takes them; what was used least recently goes. `what` tells people what they are."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > LIMIT:
        return
    with suppress(OSError, SafetensorError, InputError):  # a full or foreign disk keeps nothing
        _make_room(size)
        with files.atomic(folder() / f"{key}.safetensors") as path:
            save_file(tensors, path, {"checksum": _checksum(tensors), "what": what})


def kept() -> list[Kept]:
    """All there are, the least recently used first."""
    found = []
    for path in folder().glob("*.safetensors"):
        with suppress(OSError):                         # another process may have removed it
            status = path.stat()
            found.append(Kept(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def empty() -> int:
    """Remove all of them; how many bytes that were."""
    found = kept()
    for entry in found:
        entry.path.unlink(missing_ok=True)
    return sum(entry.size for entry in found)


def _make_room(size: int) -> None:
    found = kept()
    used = sum(entry.size for entry in found)
    for entry in found:
        if used + size <= LIMIT:
            return
        used -= entry.size
        entry.path.unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(repr((name, tuple(tensors[name].shape), str(tensors[name].dtype))).encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
