"""Bytes of regular files, never more than was agreed on, and the one way errors leave a reader."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fpmc.errors import InputError, in_short


@contextmanager
def reading(path: str | os.PathLike[str], instead: str = "is it whole? fetch or make it again") -> Iterator[None]:
    """Whatever goes wrong while reading `path` becomes one `InputError` of one line that names it."""
    try:
        yield
    except InputError as error:
        said = " ".join(str(error).split())
        raise InputError(said if said.startswith(repr(str(path))) else f"{str(path)!r}: {said}") from error
    except Exception as error:  # decoders fail in every way there is on damaged files
        raise InputError(f"{str(path)!r}: cannot be read ({in_short(error)}); {instead}") from error


@contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A regular file for reading: pipes would wait for ever, and devices have no end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise InputError(f"{Path(path).name!r} is no regular file; give the file itself")
    with open(path, "rb") as file:
        yield file


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads somewhere; names too long, empty or with a zero byte lead nowhere."""
    try:
        return bool(os.fspath(path)) and os.stat(path) is not None
    except (OSError, ValueError):
        return False


def size_of(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a file that has at most so many bytes."""
    with open_file(path) as file:
        size = size_of(file)
        if size > most:
            raise InputError(f"{Path(path).name!r} has {size:,} bytes; at most {most:,} are read")
        return file.read(most)
