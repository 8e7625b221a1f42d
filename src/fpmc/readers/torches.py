"""Files of `torch.save`, zipped or of the format before, read by the pickle machine without calls.

Torch's own reader is not asked: here the values of a tensor are checked against the bytes that are there before memory
is taken, compressed members (decompression bombs) are refused, and every member's checksum (CRC-32) is compared.
"""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.files import write_checked
from fpmc.readers.pickles import Bounded, Maker, Name, Refused, expect, interpret, make_bytes
from fpmc.readers.source import open_file, reading, size_of

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how files begin that are not zipped
ZIPPED = b"PK\x03\x04"
MOST_MEMBERS = 100_000
TYPES = {
    "torch.DoubleStorage": torch.float64, "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.CharStorage": torch.int8, "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}


class Storage(NamedTuple):
    """The values that tensors are views of."""

    values: Tensor  # (n,)


def is_torch(head: bytes) -> bool:
    """Whether a file that begins so was written by `torch.save`."""
    return head.startswith((ZIPPED, LEGACY))


def read_torch(path: str | os.PathLike[str]) -> Any:
    """What `torch.save` wrote, if it is made of tensors, numbers, texts, dicts and lists, as a checkpoint is."""
    with reading(path, "it is refused; write it again with torch.save"), open_file(path) as file:
        try:
            return read_stream(file, size_of(file))
        except Refused as error:
            raise InputError(f"refused: not a plain file of tensors, {error}; nothing in it was executed") from error


def write_torch(path: str | os.PathLike[str], value: Any) -> None:
    """A file for `read_torch`, with its checksum beside it; the same value gives the same bytes."""

    def save(part: Path) -> None:
        with part.open("wb") as file:                   # of a path torch would keep the name, which is made up
            torch.save(_one_name_each(value), file)

    write_checked(path, save)


def _one_name_each(value: Any) -> Any:
    """The same with one string object for each name: pickle writes equal strings once if they are one, else twice."""
    if isinstance(value, dict):
        return {sys.intern(key) if isinstance(key, str) else key: _one_name_each(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_one_name_each(each) for each in value)
    return value


def read_stream(file: IO[bytes], size: int) -> Any:
    """The same of an open file."""
    head = file.read(len(LEGACY))
    file.seek(0)
    if head.startswith(ZIPPED):
        return _zipped(file, size)
    if head == LEGACY:
        return _legacy(Bounded(file, size))
    raise Refused("it does not begin as files of torch.save do")


def _zipped(file: IO[bytes], size: int) -> Any:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS or len({info.filename for info in members}) < len(members):
            raise Refused(f"it has {len(members):,} members, or two of one name")
        if any(info.compress_type != zipfile.ZIP_STORED for info in members):
            raise Refused("it is compressed, as torch.save never does")
        if sum(info.file_size for info in members) > size:
            raise Refused("its members overlap")
        places = {PurePosixPath(info.filename).parts[1:]: info for info in members}
        if ("data.pkl",) not in places:
            raise Refused("it has no data.pkl")
        if ("byteorder",) in places and archive.read(places["byteorder",])[:8] != b"little":
            raise Refused("its numbers have the other byte order")
        storages: dict[str, Storage] = {}

        def find(reference: Any) -> Storage:
            dtype, name, count = _reference(reference)
            if name not in storages:
                info = places.get(("data", name))
                if info is None or info.file_size != count * dtype.itemsize:
                    raise Refused(f"the values {name[:20]!r} are missing or not {count:,} of {dtype}")
                storages[name] = Storage(_values(archive.read(info), dtype))
            if storages[name].values.dtype != dtype or len(storages[name].values) != count:
                raise Refused(f"the values {name[:20]!r} are wanted as two things")
            return storages[name]

        content = archive.read(places["data.pkl",])
        return interpret(Bounded(io.BytesIO(content), len(content)), MAKERS, find)


def _legacy(source: Bounded) -> Any:
    """Three pickles of constants, the content, the names of its storages, then the values of each."""
    if [interpret(source, {}) for _ in range(3)][1] != 1001:
        raise Refused("it is of an unknown version")
    storages: dict[str, Storage] = {}

    def find(reference: Any) -> Storage:
        dtype, name, count = _reference(reference)
        if name not in storages:
            source.spend(count * dtype.itemsize)
            storages[name] = Storage(torch.zeros(count, dtype=dtype))
        if storages[name].values.dtype != dtype or len(storages[name].values) != count:
            raise Refused(f"the values {name[:20]!r} are wanted as two things")
        return storages[name]

    content = interpret(source, MAKERS, find)
    names = expect(interpret(source, {}), list)
    if len(names) != len(storages) or {expect(name, str) for name in names} != storages.keys():
        raise Refused("the values of its tensors are missing")
    for name in names:
        values = storages[name].values
        if struct.unpack("<q", source.read(8))[0] != len(values):
            raise Refused(f"the values {name[:20]!r} are not {len(values):,}")
        values.copy_(_values(source.read(values.nbytes), values.dtype))
    return content


def _reference(reference: Any) -> tuple[torch.dtype, str, int]:
    """('storage', its type, its name, the device, how many)."""
    parts = expect(reference, tuple)
    if len(parts) not in (5, 6) or parts[0] != "storage" or (len(parts) == 6 and parts[5] is not None):
        raise Refused("its tensors refer to something unknown")
    dtype = TYPES.get(expect(parts[1], Name).text)
    count = expect(parts[4], int)
    if dtype is None or not 0 <= count < 2**40:
        raise Refused(f"it has values of type {parts[1].text}, {count} of them"[:200])
    return dtype, expect(parts[2], str), count


def _values(content: bytes, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)


def make_tensor(source: Bounded, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    """`torch._utils._rebuild_tensor_v2`, within the values that are there."""
    values = expect(storage, Storage).values
    whole = [expect(n, int) for n in (offset, *expect(size, tuple), *expect(stride, tuple))]
    if min(whole) < 0 or len(size) != len(stride) or math.prod(size) > values.numel():
        raise Refused(f"a tensor of size {str(size)[:60]} does not fit its values")  # strides of 0 would make any size
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if 0 not in size and last >= values.numel():
        raise Refused(f"a tensor of size {str(size)[:60]} lies outside its values")
    return values.as_strided(size, stride, offset)


def make_parameter(source: Bounded, data: Any, *rest: Any) -> Tensor:
    """`torch._utils._rebuild_parameter`."""
    return expect(data, Tensor)


def _never(source: Bounded, *arguments: Any) -> Any:
    raise Refused("it makes values by a call")


MAKERS: dict[str, Maker] = {
    "torch._utils._rebuild_tensor_v2": make_tensor,
    "torch._utils._rebuild_parameter": make_parameter,
    "collections.OrderedDict": lambda source: {},
    "torch.Size": lambda source, size: torch.Size([expect(n, int) for n in expect(size, tuple, list)]),
    "_codecs.encode": make_bytes,
    **dict.fromkeys(TYPES, _never),
}
