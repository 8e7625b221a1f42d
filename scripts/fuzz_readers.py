"""Fuzz one reader with atheris (coverage-guided): `python scripts/fuzz_readers.py "EDM zip" -max_total_time=120`.

Whatever the bytes, a reader returns or raises one `InputError` of one line that names the file. Anything else stops the
run, and libFuzzer writes the bytes as crash-…; put them, minimised with -minimize_crash=1, into tests/faults/corpus.
Without arguments the names of the readers are printed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
with atheris.instrument_imports(include=["fpmc.readers", "fpmc.data", "fpmc.networks", "zipfile", "PIL", "tarfile"]):
    from faults.formats import FORMATS
    from fpmc.errors import InputError


def main() -> None:
    """Read the file's bytes as libFuzzer makes them up, from a valid file on."""
    if len(sys.argv) < 2 or sys.argv[1] not in FORMATS:
        print("\n".join(FORMATS))
        return
    form = FORMATS[sys.argv.pop(1)]
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.environ["FPMC_HOME"] = str(folder / "home")
    path, corpus = folder / "read" / form.file, folder / "corpus"
    path.parent.mkdir()
    corpus.mkdir()
    (corpus / "valid").write_bytes(form.make())

    def one(content: bytes) -> None:
        path.write_bytes(content)
        try:
            form.read(path)
        except InputError as error:
            text = str(error)
            if "\n" in text or len(text) > 1000 or str(path.parent) not in text:
                raise RuntimeError(f"not one line that names the file: {text}") from error

    atheris.Setup([*sys.argv, "-timeout=20", "-rss_limit_mb=2048", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
