"""Seeded generators of hostile files: random damage to valid ones, and the tricks of each format made by hand."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save

from faults.formats import FORMATS, SETTINGS, batch, config, edm_zip, network, picture, saved, weights, zipped

NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def damaged(content: bytes, seed: int, others: list[bytes]) -> bytes:
    """One of nine kinds of damage; half of the time near the beginning, where headers are."""
    rng = random.Random(seed)
    data = bytearray(content)
    size = len(data)
    at = rng.randrange(min(size, 200) if rng.random() < 0.5 else size)
    match seed % 9:
        case 0:
            return bytes(data[:at])
        case 1:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(max(0, at - 40), min(size, at + 40))] ^= 1 << rng.randrange(8)
        case 2:
            data[at : at + rng.randint(1, 64)] = bytes([rng.choice((0, 0xFF))]) * rng.randint(1, 64)
        case 3:
            form = rng.choice(("<B", "<H", "<I", ">I", "<Q", ">Q"))
            number = rng.choice(NUMBERS) % 2 ** (8 * struct.calcsize(form))
            data[at : at + struct.calcsize(form)] = struct.pack(form, number)
        case 4:
            data[at:at] = rng.randbytes(rng.randint(1, 200))
        case 5:
            del data[at : at + rng.randint(1, 100)]
        case 6:
            data[at:at] = data[at : at + rng.randint(1, 300)] * rng.randint(1, 50)
        case 7:
            data[:16] = rng.choice(others)[:16]
        case 8:
            place = rng.randrange(size)
            data[at : at + 20], data[place : place + 20] = data[place : place + 20], data[at : at + 20]
    return bytes(data)


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin1") + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text) % 2 ** (16 if version == 1 else 32))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + content


def tensors(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def commands(canary: Path) -> Iterator[Any]:
    """What would leave a mark if it ever ran."""
    yield Call(os.system, f"touch {canary}")
    yield Call(exec, f"open({str(canary)!r}, 'w')")
    yield Call(eval, f"open({str(canary)!r}, 'w')")
    yield Call(Path.touch, canary)
    yield Call(os.mkdir, str(canary))
    yield Call(np.savetxt, str(canary), [1])


def pickles(canary: Path) -> Iterator[bytes]:
    for command in commands(canary):
        for protocol in (0, 2, 4):
            yield pickle.dumps(command, protocol)
            yield pickle.dumps({"ema": command}, protocol)
            yield pickle.dumps({"data": command, "labels": [command]}, protocol)
    touch = f"touch {canary}"
    yield f"(S'{touch}'\nios\nsystem\n.".encode()
    yield f"(cos\nsystem\nS'{touch}'\no.".encode()
    yield b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x."
    yield b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x."
    yield b"\x80\x02" + b"]" * 300_000
    yield b"\x80\x02" + b"(" * 300_000 + b"."
    yield b"\x80\x02" + b"\x85" * 1000 + b"."
    yield b"\x80\x02K\x01" + b"\x85" * 200_000 + b"."
    yield b"\x80\x02X\1\0\0\0aQ."
    yield b"\x80\x02\x82\x01."
    yield b"\x80\x02}(K\x01K\x02K\x03u."
    yield batch().replace(b"\x03\x00", b"\xff\xff", 1)
    for shape in ((-3, -3072), (3, 1024), (2**40, 3072), ("3", 3072), (3, 3072, 1), ()):
        array = np.zeros((3, 3072), np.uint8).__reduce__()
        state = (array[2][0], shape, *array[2][2:])  # pyright: ignore[reportIndexIssue, reportArgumentType]
        yield pickle.dumps({"data": Reduced(array[0], array[1], state), "labels": [1, 2, 3]}, 2)
    for labels in ([1, 2], [1, 2, 30], [1, 2, -1], [1.5] * 3, "abc", None, [[1], [2], [3]], [2**70] * 3):
        yield pickle.dumps({"data": np.zeros((3, 3072), np.uint8), "labels": labels}, 2)


class Reduced:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def arrays(canary: Path) -> Iterator[bytes]:
    """`.npy` files that lie."""
    shapes = (
        "(-1,)", "(-4, 3, 6, 8)", "(4, 3, 6, 8, -1, -1)", "(99999999999999, 3, 6, 8)", "(2**70,)", "(True, 3, 6, 8)",
        "(4, 3, 6, 8)" * 2, "(4, 3, 6)", "()", "(0, 3, 6, 8)", "(0,)", "(1e3,)", "4", "'a'", "(" * 900,
        "-" * 900 + "1", "((4,), 3)", "(4, 3, 6, 8" + ", 1" * 100 + ")",
    )
    for shape in shapes:
        for version in (1, 2):
            header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
            yield npy(header, bytes(576), version)
    for kind in ("|O", "<U9999999", "|V4", "<c16", "<M8[s]", "|S1", "<f4", "<i8", "[('a', '<f4')]", "('|u1', (99,))"):
        descr = kind if kind[0] in "[(" else repr(kind)
        yield npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4, 3, 6, 8), }}", bytes(576))
    yield npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 3, 6, 8), 'more': 1}", bytes(576))
    yield npy("__import__('os').system('touch " + str(canary) + "')")
    yield npy("x" * 20_000, b"", 2)
    yield b"\x93NUMPY\x09\x09" + bytes(100)
    for command in commands(canary):
        objects = np.empty(1, object)
        objects[0] = command
        yield saved(lambda file, objects=objects: np.save(file, objects, allow_pickle=True))


def archives(canary: Path) -> Iterator[bytes]:
    """Zips that climb, hide, overlap or explode."""
    image = picture("PNG")
    for name in ("../x.png", "/x.png", "a/../../x.png", "C:x.png", "a\\..\\x.png"):
        yield zipped({name: image, "y.png": image})
    yield zipped({"x.png": bytes(1_000_000)}, zipfile.ZIP_DEFLATED)
    yield zipped({"dataset.json": b'{"labels": null}'})
    yield zipped({})
    yield zipped({f"{i}.txt": b"" for i in range(3000)})
    whole = b'{"labels": [["x.png", %s]]}'
    labels = b"-1", b"18446744073709551615", b"1.5", b"true", b'"1"', b"null", b"[0]", b"1e400", b"NaN", b"9" * 999
    for label in labels:
        yield zipped({"x.png": image, "dataset.json": whole % label})
    for text in (
        b"[" * 100_000, b'{"labels":' * 50_000, b'{"labels": {}}', b'{"labels": [["x.png", 1], ["x.png", 2]]}', b"{",
        b'{"labels": null, "labels": [["x.png", 1]]}', b"\xff\xfe", b"", b'{"labels": [[[], 1]]}',
        b'{"labels": [["x.png"]]}', b'{"labels": [["y.png", 1]]}', b'{"lables": [["x.png", 1]]}',
    ):
        yield zipped({"x.png": image, "dataset.json": text})
    for at in range(12):  # the name of the labels in the directory
        content = bytearray(edm_zip())
        content[content.rindex(b"dataset.json") + at] ^= 1
        yield bytes(content)
    yield zipped(dict.fromkeys([f"{i}.png" for i in range(40)], png(4000, 4000)), zipfile.ZIP_DEFLATED)
    yield zipped({"images.npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (90000, 3, 999, 999), }")})
    for inner in arrays(canary):
        yield zipped({"images.npy": inner})
        yield zipped({"x.npy": FORMATS["npy"].make(), "y.npy": inner}, zipfile.ZIP_DEFLATED)
    blank = np.zeros((4, 1, 8, 8), np.uint8)
    for labels in ([-1, 0, 0, 0], np.array([2**64 - 1] * 4, np.uint64), [0, 1, 2], [2**40] * 4, [0.5] * 4):
        yield saved(lambda file, labels=labels: np.savez(file, images=blank, labels=labels))


def png(width: int, height: int, depth: int = 8, colour: int = 0, rows: bytes | None = None) -> bytes:
    """A PNG chunk by chunk; its rows are black unless given."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    packed = zlib.compress(bytes((width + 1) * height) if rows is None else rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def pictures(canary: Path) -> Iterator[bytes]:
    for sides in ((0, 5), (5, 0), (2**31 - 1, 1), (60_000, 60_000), (5000, 5000), (2**32 - 1, 2**32 - 1), (5, 5)):
        yield png(*sides, rows=b"short")
    yield from (png(4, 4, 16, 2), png(4, 4, 8, 3), png(4, 4, 8, 6), png(4, 4, 1, 0), png(4, 4, 8, 4))
    yield b"GIF89a" + bytes(50)
    yield b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(" + str(canary).encode() + b") (w) file closefile\n"
    yield b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    yield b"II*\0" + bytes(60)


def idxs(canary: Path) -> Iterator[bytes]:
    for shape in ((2**32 - 1,) * 3, (0, 6, 8), (4, 6), (4, 6, 8, 1), (1, 1, 2**31), (60_000, 28, 28)):
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        yield head + bytes(192)
        yield gzip.compress(head + bytes(192))
    yield gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 300_000, 32, 32) + bytes(10_000_000))
    yield b"\0\0\x0d\x03" + bytes(300)
    yield b"\0\0\x08\xff" + bytes(300)
    yield b"\0\0\x08"
    yield b"\x1f\x8b"
    yield gzip.compress(b"")


def safetensors(canary: Path) -> Iterator[bytes]:
    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    entries: list[Any] = [
        {**good, "shape": [-2]}, {**good, "shape": [2**62, 2**62]}, {**good, "shape": 2}, {**good, "shape": [2.0]},
        {**good, "shape": [True, 2]}, {**good, "shape": [1] * 100}, {**good, "dtype": "F9"}, {**good, "dtype": ["F32"]},
        {**good, "data_offsets": [8, 0]}, {**good, "data_offsets": [0, 2**63]}, {**good, "data_offsets": [0]},
        {**good, "data_offsets": [-8, 0]}, {**good, "data_offsets": [4, 12]}, {**good, "more": 1}, {}, [], 5, None, "x",
    ]
    yield from (tensors({"a": entry}, bytes(8)) for entry in entries)
    yield tensors({"a": good, "b": good}, bytes(8))
    yield tensors({"a": good, "b": {**good, "data_offsets": [4, 12]}}, bytes(12))
    yield tensors({"a": good}, bytes(9))
    yield tensors({"a": good}, bytes(7))
    for metadata in ([1], 5, {"fpmc": 1}, {"fpmc": None}, "x", {"fpmc": {"a": "b"}}, {"fpmc": ["x"]}):
        yield tensors({"__metadata__": metadata, "a": good}, bytes(8))
    for length in (2**63, 2**64 - 1, 10**9, 0, 1):
        yield tensors({"a": good}, bytes(8), length)
    yield from (b"", b"x", *map(tensors, (b"[" * 100_000, b'{"a":' * 100_000, b"{", b'{"a":1,"a":2}')))
    yield tensors({f"t{i}": {**good, "data_offsets": [0, 0], "shape": [0]} for i in range(1000)})
    changed = ({**SETTINGS, "num_blocks": 10**12}, {**SETTINGS, "more": 1}, {"img_resolution": "8"})
    for settings in ([1], 5, "x", None, *changed):
        yield save(network().state_dict(), {"fpmc": json.dumps(settings)})
    for text in ("[" * 100_000, "{", "", '{"a": 1, "a": 2}'):
        yield save(network().state_dict(), {"fpmc": text})
    for change in (torch.tensor(1.0), torch.zeros(0), torch.zeros(3), torch.zeros(4, 4, 4, 4, 4)):
        for name in ("model.enc.8x8_conv.weight", "model.map_layer0.weight", "model.out_norm.bias"):
            if name in network().state_dict():
                yield save({**network().state_dict(), name: change})
    yield save({"model.enc.8x8_conv.weight": torch.tensor(1.0), "model.map_layer0.weight": torch.tensor(2.0)})
    yield weights()[:-1]


def torches(canary: Path) -> Iterator[bytes]:
    state = network().state_dict()
    contents: list[Any] = [
        {1: torch.ones(1)}, {"a": 1}, {"ema": {1: torch.ones(1)}}, [1], 5, None, "x", {}, {"ema": {}},
        {"config": 5, "ema": state}, {"config": [1], "ema": state}, {"config": {1: 2}, "ema": state},
        {"config": {"img_resolution": 10**30}, "ema": state}, {"model.enc.8x8_conv.weight": torch.tensor(1.0)},
        {**state, "model.map_layer0.weight": torch.tensor(1.0)}, {**state, "x": torch.ones(2)},
        {name: value.to(torch.complex64) for name, value in state.items()}, {"a": torch.ones(2).to_sparse()},
        *commands(canary), *({"ema": command} for command in commands(canary)),
    ]
    for content in contents:
        for zipping in (True, False):
            try:
                yield saved(
                    lambda file, content=content, zipping=zipping: torch.save(
                        content, file, _use_new_zipfile_serialization=zipping
                    )
                )
            except RuntimeError:  # kinds that the old format has no form for
                continue
    plain = saved(lambda file: torch.save(state, file))
    with zipfile.ZipFile(io.BytesIO(plain)) as old:
        members = {name: old.read(name) for name in old.namelist()}
    key = next(name for name in members if name.endswith("data.pkl"))
    yield zipped(members, zipfile.ZIP_DEFLATED)
    yield zipped({**members, key: members[key].replace(b"FloatStorage", b"OddStorage")})
    for number in (b"M\xff\xff", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f"):
        yield zipped({**members, key: members[key].replace(b"K\x04", number)})
    yield zipped({name: content for name, content in members.items() if not name.endswith("data/0")})
    yield zipped({**members, key.replace("data.pkl", "byteorder"): b"big"})
    yield zipped({"archive/data.pkl": b"\x80\x02."})
    yield zipped({"data.pkl": members[key]})
    yield zipped({})


def texts(canary: Path) -> Iterator[bytes]:
    yield from (b"[" * 100_000, b"{" * 100_000, b'{"a":' * 100_000, b'[{"a":' * 50_000, b"1" * 100_000, b" " * 1000)
    yield from (b"", b"\0", b"\xff\xfe{}", b"nul", b'"' + b"\\u0000" * 1000, b'{"a": "' + b"x" * 10_000, config()[:-1])
    yield from (b'{"a": 1, "a": 2}', b"5", b"[1]", b"{}", b"[]", b'{"command": 5}', b'{"settings": []}')
    yield b'{"a": 1}\n{"a": \n{"a": 3}\n'
    yield b'{"a": 1}\n[1]\n'
    yield b'{"a": 1}\n\n{"a": 2}\n'
    yield b"{}\n" * 1000 + b'{"a": "' + b"y" * 2_000_000 + b'"}\n'
    yield b"9" * (17 * 2**20)


def mapfiles(canary: Path) -> Iterator[bytes]:
    one = [[0.5, 3, 0.1]]

    def file(levels: Any, codes: bytes = b"x", largest: Any = None, **more: Any) -> bytes:
        largest = torch.ones(4, 4) if largest is None else largest
        packed = torch.frombuffer(bytearray(codes), dtype=torch.uint8)
        text = levels if isinstance(levels, str) else json.dumps(levels)
        return save({"codes.0": packed, "largest.0": largest, **more}, {"fpmc-maps": text})

    codes = lzma.compress(bytes(256))
    for levels in (
        [], [1], [[0.5]], [["x", 1, 0.1]], [[-1.0, 1, 0.1]], [[1e30, 1, 0.1]], [[0.5, 0, 0.1]], {}, 5, "[" * 100_000,
        [[0.5, 3, -0.1]], [[0.5, 3, "x"]], one * 2, [[0.5, 3, 0.1, 1]], [[None, 3, 0.1]],
    ):
        yield file(levels, codes)
    yield file(one, codes, torch.ones(4, 4).long())
    yield file(one, codes, torch.full((4, 4), torch.nan))
    for shape in ((), (4,), (0, 4), (4, 4, 4), (300, 300), (8, 8)):
        yield file(one, codes, torch.ones(shape))
    yield file(one, lzma.compress(bytes(8_000_000)))
    yield file(one, b"not lzma")
    yield file(one, codes[:-4])
    yield file(one, lzma.compress(bytes(255)))
    yield file(one, codes, more=torch.ones(1))
    yield save({"a": torch.ones(1)}, {"fpmc-maps": json.dumps(one)})
    yield save({"codes.0": torch.ones(3), "largest.0": torch.ones(4, 4)}, {"fpmc-maps": json.dumps(one)})
    yield save({"a": torch.ones(1)})


class Group(NamedTuple):
    """Files made by hand, the readers that must refuse all of them, and more general ones that may read some."""

    generate: Callable[[Path], Iterator[bytes]]
    refuse: tuple[str, ...]
    may_read: tuple[str, ...] = ()


def tars(canary: Path) -> Iterator[bytes]:
    """Archives that climb, link, or announce more than they hold."""
    kinds = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    for kind in kinds:
        for name in ("data_batch_1", "../../canary", str(canary), "a/../data_batch_1.bin", "data_batch_1.png"):
            for size in (0, 5, 2**33, 2**60):
                info = tarfile.TarInfo(name)
                info.type, info.size, info.linkname = kind, size, str(canary)
                yield info.tobuf(tarfile.GNU_FORMAT) + bytes(2048)
    yield gzip.compress(bytes(10**7))
    yield b"\x1f\x8b" + bytes(100)


HANDMADE = {
    "pickles": Group(pickles, ("CIFAR-10 python", "EDM pickle")),
    "arrays": Group(arrays, ("npy",), ("samples",)),
    "archives": Group(archives, ("EDM zip", "npz")),
    "pictures": Group(pictures, ("PNG", "JPEG", "picture")),
    "IDX": Group(idxs, ("IDX", "IDX, gzipped")),
    "safetensors": Group(safetensors, ("safetensors network", "maps"), ("safetensors",)),
    "torch": Group(torches, ("torch",), ("checkpoint",)),
    "texts": Group(texts, ("run config",), ("json", "json lines")),
    "maps": Group(mapfiles, ("maps",)),
    "tars": Group(tars, ("CIFAR-10 archive",)),
}
