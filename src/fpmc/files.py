"""Files that are whole or absent, and the cache folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fpmc.errors import InputError


def home() -> Path:
    """The cache folder: `$FPMC_HOME`, or `~/.cache/fpmc`."""
    return Path(os.environ.get("FPMC_HOME") or Path.home() / ".cache" / "fpmc")


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path` in one step, on failure it vanishes."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}; choose a folder you may write to") from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
