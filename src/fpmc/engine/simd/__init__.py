"""Numba's language: vectors of images, and the kernels made of them.

Numba keeps compiled kernels on disk and compiles one again when its own file changes, not when a file it calls does. So
all of them go when any file of this folder has changed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

LANES = 16                                              # images side by side in a vector
NEGLIGIBLE = 1e-25                                      # weights below are 0, beside one that is 1, in torch, too


def _forget_stale_kernels() -> None:
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(here.glob("*.py")))).hexdigest()
    stamp = here / "__pycache__" / "kernels.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    for file in (here / "__pycache__").glob("*.nb?"):
        file.unlink(missing_ok=True)
    stamp.parent.mkdir(exist_ok=True)
    stamp.write_text(digest)


with suppress(OSError):                                 # a folder that cannot be written keeps nothing either
    _forget_stale_kernels()
