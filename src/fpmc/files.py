"""Files that are whole or absent, that know their checksum, and folders that one process writes into at a time.

A file becomes visible in one step, after its bytes have reached the disk. What a killed process leaves behind (hidden,
`.name.xxxxxxxx.part`) is removed by the next one that writes into the folder, unless its writer is still alive.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fpmc.errors import InputError, in_short

try:
    import fcntl
except ImportError:  # Windows, where the file of a living writer cannot be deleted anyway
    fcntl = None

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.part(\.[^.]*)?")
# What NumPy, torch and safetensors say instead of an OSError with its number.
SAID_FULL = re.compile(
    r"No space left|quota exceeded|File too large|file write failed|iostream error|unexpected pos \d+ vs \d+|"
    r"requested and \d+ written",
    re.IGNORECASE,
)
_swept: set[Path] = set()


def home() -> Path:
    """The cache folder: `$FPMC_HOME`, or `~/.cache/fpmc`."""
    return Path(os.environ.get("FPMC_HOME") or Path.home() / ".cache" / "fpmc")


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """A full disk, a folder one may not write to or that is gone: one `InputError` that names the file."""
    try:
        yield
    except Exception as error:  # torch raises RuntimeError, safetensors an error of its own
        if (way_out := _way_out(error, Path(path))) is None:
            raise
        raise InputError(f"cannot write {str(path)!r}: {way_out}") from error


def _way_out(error: Exception, path: Path) -> str | None:
    """What to do about an error of writing `path`; None if it is about something else."""
    number = getattr(error, "errno", None)
    if isinstance(error, InputError):
        return None
    if number in FULL or (number is None and SAID_FULL.search(str(error))):
        return "the disk is full; free some space, then run the same again: it goes on from what is saved"
    if not isinstance(error, OSError):
        return None
    if error.filename is not None:  # the file, its temporary, a folder above it; or something that was being read
        named = Path(os.fsdecode(error.filename))
        if named not in (path, *path.parents) and not named.name.startswith(f".{path.name[:100]}."):
            return None
    if number == errno.ENOENT:
        return "its folder is gone; run the same again, or choose another"
    return f"{in_short(error)}; choose a folder you may write to"


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path` in one step, on failure it vanishes."""
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent not in _swept:
            _swept.add(path.parent)
            sweep(path.parent)
        handle, name = tempfile.mkstemp(f".part{path.suffix[:20]}", f".{path.name[:100]}.", path.parent)
    part = Path(name)
    if fcntl is None:
        os.close(handle)
    try:
        _lock(handle)  # held while this process lives: see `sweep`
        with writing(path):
            yield part
            mask = os.umask(0)
            os.umask(mask)
            part.chmod(0o666 & ~mask)
            _to_disk(part)
            os.replace(part, path)
            _to_disk(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
            os.close(handle)


def write_checked(path: str | os.PathLike[str], content: bytes | str | Callable[[Path], object]) -> None:
    """Write a file in one step, with its SHA-256 in a hidden file beside it, for `verify`.

    content: its bytes or text, or a function that writes to the path it is given. The sum of the new file is there
    before the file is, next to that of the old one, so that a kill at any moment leaves a file that matches.
    """
    path = Path(path)
    with atomic(path) as part:
        if callable(content):
            content(part)
        else:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
        new = sha256(part)
        _write_sums(path, [*_sums(path), *([sha256(path)] if path.exists() else []), new])
    _write_sums(path, [new])


def verify(path: str | os.PathLike[str]) -> bool:
    """Whether a file has a checksum beside it; one that does not match is an `InputError`."""
    path = Path(path)
    try:
        sums = _sums(path)
        found = sha256(path) if sums else None
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {in_short(error)}; delete it to compute it again") from error
    if sums and found not in sums:
        raise InputError(f"{str(path)!r} is damaged: its checksum does not match; delete it to compute it again")
    return bool(sums)


def settle(path: str | os.PathLike[str]) -> None:
    """Forget the sum of the file before, which a kill may have left there; for whoever alone writes this file."""
    path = Path(path)
    if len(_sums(path)) > 1:
        _write_sums(path, [sha256(path)])


def read_checked(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file of `write_checked`, verified."""
    verify(path)
    return Path(path).read_bytes()


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file of `write_checked` and its checksum."""
    for each in (Path(path), _place(Path(path))):
        each.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def sweep(folder: str | os.PathLike[str], *, deep: bool = False) -> int:
    """Remove what killed writers left in a folder (and those below it); how many files that was."""
    count = 0
    for place, _, names in os.walk(folder):
        for name in filter(LEFTOVER.fullmatch, names):
            with suppress(OSError):
                handle = os.open(Path(place, name), os.O_RDWR)
                try:
                    if _lock(handle):
                        os.unlink(Path(place, name))
                        count += 1
                finally:
                    os.close(handle)
        if not deep:
            break
    return count


def lock(folder: str | os.PathLike[str], *, wait: bool = False) -> FileLock:
    """The lock of a folder, held until it is released or its process ends; another process waits or is refused.

    It lies beside the folder, so that the folder can be deleted and made anew.
    """
    path = Path(folder).resolve()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.parent / f".{path.name}.lock"
        if not os.access(path.parent, os.W_OK):
            path.mkdir(exist_ok=True)
            place = path / ".lock"
        # One object for a folder in a process, which may ask again; other processes may not.
        held = FileLock(place, thread_local=False, is_singleton=True)
        try:
            held.acquire(timeout=-1 if wait else 0)
        except Timeout as error:
            raise InputError(
                f"another process is writing into {str(folder)!r}; wait until it is done, or choose another --outdir"
            ) from error
    return held


def _lock(handle: int) -> bool:
    """Claim an open file until it is closed; whether that worked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody writes it, or this file system has no locks
        return False
    return True


def _to_disk(path: Path) -> None:
    """Wait until a file or the names in a folder have reached the disk, so that a power cut finds them."""
    with suppress(PermissionError):  # folders, on Windows
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _place(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _sums(path: Path) -> list[str]:
    try:
        lines = _place(path).read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line[:64] for line in lines[:64]] or ["nothing"]


def _write_sums(path: Path, sums: list[str]) -> None:
    with atomic(_place(path)) as part:
        part.write_text("".join(f"{each}  {path.name}\n" for each in sums), encoding="utf-8")
