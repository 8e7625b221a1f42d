"""Every format that is read from outside: a small valid file, and the reader that users reach it by."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from fpmc.data import get_cifar10, load_images
from fpmc.data.pictures import read_picture
from fpmc.files import read_checked, write_checked
from fpmc.networks import load_maps, load_network
from fpmc.networks.mapfile import save_maps
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.precond import EDMPrecond
from fpmc.readers.arrays import read_npy
from fpmc.readers.tensors import read_safetensors
from fpmc.readers.text import read_json, read_lines, read_yaml
from fpmc.readers.torches import read_torch
from fpmc.report.run import read_config
from networks.edm_pickle import edm_pickle

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 6, 8), dtype=np.uint8)
SETTINGS = {
    "img_resolution": 8, "img_channels": 1, "model_channels": 4, "channel_mult": [1], "channel_mult_emb": 1,
    "num_blocks": 1, "attn_resolutions": [],
}


class Format(NamedTuple):
    """The name a file of this kind has, the bytes of a valid one, and its reader."""

    file: str
    make: Callable[[], bytes]
    read: Callable[[Path], Any]


def saved(save_to: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    save_to(file)
    return file.getvalue()


def picture(kind: str) -> bytes:
    return saved(lambda file: Image.fromarray(PIXELS[0].transpose(1, 2, 0)).save(file, kind))


def edm_zip(compression: int = zipfile.ZIP_STORED) -> bytes:
    files = {f"00000/img{i:08d}.png": picture("PNG") for i in range(3)}
    files["dataset.json"] = json.dumps({"labels": [[name, i] for i, name in enumerate(files)]}).encode()
    return zipped(files, compression)


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w", compression) as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    return saved(write)


def idx() -> bytes:
    return b"\0\0\x08\x03" + struct.pack(">3I", 4, 6, 8) + PIXELS[:, 0].tobytes()


def records() -> np.ndarray:
    rows = np.random.default_rng(1).integers(0, 256, (3, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    return rows


def batch() -> bytes:
    return pickle.dumps({"data": records()[:, 1:].copy(), "labels": records()[:, 0].tolist()}, 2)


def archive() -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            info = tarfile.TarInfo("cifar-10/data_batch_1")
            info.size = len(batch())
            tar.addfile(info, io.BytesIO(batch()))

    return saved(write)


@cache
def network() -> EDMPrecond:
    torch.manual_seed(0)
    return EDMPrecond(**SETTINGS).eval()


def checkpoint(zipped: bool = True) -> bytes:
    content = {"config": SETTINGS, "ema": network().state_dict(), "step": 3, "optimizer": {"state": {0: torch.ones(2)}}}
    return saved(lambda file: torch.save(content, file, _use_new_zipfile_serialization=zipped))


def weights() -> bytes:
    return save(network().state_dict(), {"format": "pt", "fpmc": json.dumps(SETTINGS)})


def from_disk(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "file.safetensors")
        return (Path(folder) / "file.safetensors").read_bytes()


def maps() -> bytes:
    values = torch.rand(4, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    return from_disk(lambda path: save_maps(SensitivityMaps({0.5: values}, {0.5: 3}, {0.5: 0.1}), path))


def checked(path: Path) -> bytes:
    """A file whose checksum was taken before somebody changed it."""
    content = path.read_bytes()
    write_checked(path, b"as it was")
    path.write_bytes(content)
    return read_checked(path)


def config() -> bytes:
    return json.dumps({"command": "sample", "settings": {"seeds": [0, 1]}, "versions": {"fpmc": "1"}}).encode()


FORMATS = {
    "npy": Format("x.npy", lambda: saved(lambda file: np.save(file, PIXELS)), load_images),
    "npz": Format("x.npz", lambda: saved(lambda file: np.savez(file, x=PIXELS, y=[0, 1, 2, 3])), load_images),
    "npz, compressed": Format("x.npz", lambda: saved(lambda file: np.savez_compressed(file, x=PIXELS)), load_images),
    "EDM zip": Format("x.zip", edm_zip, load_images),
    "EDM zip, compressed": Format("x.zip", lambda: edm_zip(zipfile.ZIP_DEFLATED), load_images),
    "PNG": Format("x.png", lambda: picture("PNG"), lambda path: load_images(path.parent)),
    "JPEG": Format("x.jpg", lambda: picture("JPEG"), lambda path: load_images(path.parent)),
    "BMP": Format("x.bmp", lambda: picture("BMP"), lambda path: load_images(path.parent)),
    "WebP": Format("x.webp", lambda: picture("WEBP"), lambda path: load_images(path.parent)),
    "picture": Format("noisy.png", lambda: picture("PNG"), read_picture),
    "IDX": Format("x-idx3-ubyte", idx, load_images),
    "IDX, gzipped": Format("x-idx3-ubyte.gz", lambda: gzip.compress(idx(), mtime=0), load_images),
    "CIFAR-10 python": Format("data_batch_1", batch, load_images),
    "CIFAR-10 binary": Format("data_batch_1.bin", lambda: records().tobytes(), load_images),
    "CIFAR-10 archive": Format("cifar.tar.gz", archive, get_cifar10),
    "EDM pickle": Format("net.pkl", lambda: edm_pickle(network(), SETTINGS), load_network),
    "torch": Format("net.pt", checkpoint, load_network),
    "torch, legacy": Format("net.pt", lambda: checkpoint(zipped=False), load_network),
    "checkpoint": Format("checkpoint.pt", checkpoint, read_torch),
    "safetensors network": Format("net.safetensors", weights, load_network),
    "safetensors": Format("model.safetensors", lambda: save({"a": torch.ones(2, 3)}, {"x": "y"}), read_safetensors),
    "maps": Format("maps.safetensors", maps, load_maps),
    "json": Format("schedule.json", lambda: b'{"resolution": 32, "t": [0.5, 1], "ls": [3, 5]}', read_json),
    "yaml": Format("slurm.yaml", lambda: b"cores: 4\nmemory: 8GB\nlines: [a, b]\n", read_yaml),
    "json lines": Format("metrics.jsonl", lambda: b'{"step": 1, "loss": 0.5}\n' * 4, read_lines),
    "run config": Format("config.json", config, lambda path: read_config(path.parent)),
    "samples": Format("samples.npy", lambda: saved(lambda file: np.save(file, PIXELS.astype("f4"))), read_npy),
    "checked": Format("level.pt", lambda: b"as it was", checked),
}
