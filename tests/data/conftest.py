"""Small files of every format, made by hand, and a cache folder of the test's own."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FPMC_HOME", str(folder))
    return folder


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (5, 3, 6, 8), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    return encode(Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))))


def encode(picture: Image.Image, **options) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG", **options)
    return data.getvalue()


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG chunk by chunk, for the kinds that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def edm(pixels: np.ndarray, labels: list | str | None = "absent") -> dict[str, bytes]:
    files = {f"00000/img{i:08d}.png": png(image) for i, image in enumerate(pixels)}
    if labels != "absent":
        pairs = None if labels is None else [[name, label] for name, label in zip(files, labels)]
        files["dataset.json"] = json.dumps({"labels": pairs}).encode()
    return files


def write_idx(path: Path, array: np.ndarray) -> Path:
    data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def python2_batch(records: np.ndarray) -> bytes:
    """What Python 2 wrote for {"data": array, "labels": list} in protocol 2, opcode by opcode."""
    data = records[:, 1:].tobytes()
    rows, columns = struct.pack("<H", len(records)), struct.pack("<H", 3072)
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    array += b"(K\x01M" + rows + b"M" + columns + b"\x86" + dtype
    array += b"\x89T" + struct.pack("<I", len(data)) + data + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in records[:, 0]) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + labels + b"u."


def python3_batch(records: np.ndarray, protocol: int = 2) -> bytes:
    return pickle.dumps({"data": records[:, 1:].copy(), "labels": records[:, 0].tolist()}, protocol)


@pytest.fixture
def make() -> SimpleNamespace:
    functions = (png, encode, raw_png, write_zip, edm, write_idx, python2_batch, python3_batch)
    return SimpleNamespace(gzip=gzip.compress, **{function.__name__: function for function in functions})
