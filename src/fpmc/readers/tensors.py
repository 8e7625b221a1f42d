"""`.safetensors`: the header is checked against the bytes that are there, then the tensors are read."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from fpmc.errors import InputError
from fpmc.readers.source import open_file, reading, size_of
from fpmc.readers.text import parse_json

MOST_HEADER = 16 * 2**20    # bytes; that of a network of 1,000 tensors has 0.1 MB
MOST_TENSORS = 100_000
META = "__metadata__"
MOST_DIMENSIONS = 16
TYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}


class Tensors(NamedTuple):
    """What a safetensors file holds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def config(self, key: str) -> dict[str, Any] | None:
        """The JSON object that the metadata keep under `key`, or None if they have no such key."""
        return None if key not in self.metadata else parse_json(self.metadata[key], kind=dict)


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The same tensors and metadata give the same bytes; safetensors itself writes metadata in any order."""
    content = save(dict(tensors), dict(metadata))
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header = {META: dict(sorted(metadata.items())), **{name: header[name] for name in header if name != META}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(memoryview(content)[8 + length :])


def read_safetensors(path: str | os.PathLike[str], *, least_dimensions: int = 0) -> Tensors:
    """All tensors and the metadata of a file, copied into memory, never more than the file has.

    least_dimensions: 1 where a tensor without dimensions cannot be meant.
    """
    with reading(path), open_file(path) as file:
        entries, metadata = _header(file)
        start, there = file.tell(), size_of(file)
        _check_places(entries, there - start)
        tensors = {}
        for name, entry in sorted(entries.items(), key=lambda pair: pair[1]["data_offsets"]):
            if len(entry["shape"]) < least_dimensions:
                raise InputError(f"its tensor {name[:60]!r} is a single number; an array belongs there")
            first, last = entry["data_offsets"]
            content = bytearray(last - first)
            file.seek(start + first)
            if file.readinto(content) != len(content):  # pyright: ignore[reportAttributeAccessIssue]
                raise InputError("it became shorter while it was read; read it again")
            flat = torch.frombuffer(content, dtype=TYPES[entry["dtype"]]) if content else torch.empty(
                0, dtype=TYPES[entry["dtype"]]
            )
            tensors[name] = flat.reshape(entry["shape"])
        return Tensors({name: tensors[name] for name in entries}, metadata)


def _header(file: IO[bytes]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    head = file.read(8)
    if len(head) < 8:
        raise InputError("it is too short for safetensors; fetch it again")
    (length,) = struct.unpack("<Q", head)
    if length > min(MOST_HEADER, size_of(file) - 8):
        raise InputError(f"it announces a header of {length:,} bytes and has {size_of(file):,}; fetch it again")
    entries = parse_json(file.read(length), kind=dict)
    metadata = entries.pop(META, {})
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        raise InputError("its metadata are not names and texts; write it again with safetensors")
    if len(entries) > MOST_TENSORS:
        raise InputError(f"it announces {len(entries):,} tensors; at most {MOST_TENSORS:,} are read")
    for name, entry in entries.items():
        _check_entry(name, entry)
    return entries, metadata


def _check_entry(name: str, entry: Any) -> None:
    said = f"its tensor {name[:60]!r} is described as {json.dumps(entry)[:80]}"
    if type(entry) is not dict or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{said}; fetch it again")
    shape, place = entry["shape"], entry["data_offsets"]
    whole = all(type(part) is list and all(type(n) is int and 0 <= n < 2**48 for n in part) for part in (shape, place))
    if type(entry["dtype"]) is not str or entry["dtype"] not in TYPES or not whole:
        raise InputError(f"{said}; plain types, sizes and offsets are read ({', '.join(TYPES)})")
    if len(shape) > MOST_DIMENSIONS or len(place) != 2:
        raise InputError(f"{said}; fetch it again")
    if math.prod(shape) * TYPES[entry["dtype"]].itemsize != place[1] - place[0]:
        raise InputError(f"{said}, which does not fit its bytes; fetch it again")


def _check_places(entries: Mapping[str, Mapping[str, Any]], size: int) -> None:
    """Tensors lie one after another, without gaps or overlaps, to the end of the file."""
    end = 0
    for first, last in sorted(tuple(entry["data_offsets"]) for entry in entries.values()):
        if first != end:
            raise InputError(f"its tensors overlap or leave a gap at byte {min(first, end):,}; fetch it again")
        end = last
    if end != size:
        raise InputError(f"its tensors take {end:,} bytes and it has {size:,}: cut short or damaged; fetch it again")
