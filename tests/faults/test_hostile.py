"""More than a thousand hostile files: each is refused in one line that names it, or read; nothing runs, nothing swells.

A file that is read after damage is one whose damage its format cannot show (a pixel of a `.npy`); files that fpmc goes
on from have a checksum beside them for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from faults.formats import FORMATS
from faults.hostile import HANDMADE, damaged
from fpmc.data import load_images
from fpmc.errors import InputError

EACH = 36           # damaged files of each format
MOST = 2**30        # bytes that reading may take
CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def place(tmp_path) -> Iterator[Path]:
    """A folder to read in; what should never run would leave a file called canary beside it."""
    (tmp_path / "read").mkdir()
    forget_peak()
    before = peak()
    yield tmp_path
    assert peak() - before < MOST
    assert not list(tmp_path.rglob("canary"))


def forget_peak() -> None:
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Bytes of memory at most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines() if Path("/proc/self/status").exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def offer(kind: str, content: bytes, folder: Path) -> bool:
    """Whether a file is refused; if so, in one line of bounded length that names it."""
    path = folder / FORMATS[kind].file
    path.write_bytes(content)
    try:
        FORMATS[kind].read(path)
    except InputError as error:
        text = str(error)
        assert "\n" not in text
        assert len(text) < 600 + 3 * len(str(path))
        assert path.name in text or str(path.parent) in text
        return True
    return False


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files(kind, place):
    content = FORMATS[kind].make()
    others = [other.make() for name, other in FORMATS.items() if name != kind]
    refused = sum(offer(kind, damaged(content, seed, others), place / "read") for seed in range(EACH))
    assert refused >= EACH // 4


@pytest.mark.parametrize("kind", FORMATS)
def test_valid_files_are_read(kind, place):
    is_other = kind == "CIFAR-10 archive"  # made up, so that its SHA-1 is not the official one
    assert offer(kind, FORMATS[kind].make(), place / "read") == is_other


@pytest.mark.parametrize("name", HANDMADE)
def test_files_made_by_hand(name, place):
    group = HANDMADE[name]
    for number, content in enumerate(group.generate(place / "canary")):
        for kind in group.refuse:
            assert offer(kind, content, place / "read"), (number, kind, content[:100])
        for kind in group.may_read:
            offer(kind, content, place / "read")


def test_these_are_more_than_a_thousand(place):
    total = EACH * len(FORMATS)
    for group in (group for name, group in HANDMADE.items() if name != "archives"):
        total += (len(group.refuse) + len(group.may_read)) * sum(1 for _ in group.generate(place / "canary"))
    assert total >= 1000


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_before(path, place):
    assert offer(path.parent.name, path.read_bytes(), place / "read")


def test_pipes_devices_and_links(place):
    folder = place / "read"
    os.mkfifo(folder / "pipe.npy")
    for name in ("pipe.npy", "zero.npy", "loop.npy", "gone.npy"):
        if name == "zero.npy":
            (folder / name).symlink_to("/dev/zero")
        elif name == "loop.npy":
            (folder / name).symlink_to(folder / name)
        elif name == "gone.npy":
            (folder / name).symlink_to(folder / "nowhere")
        for kind in ("npy", "samples", "safetensors network", "checkpoint", "json", "maps"):
            with pytest.raises(InputError, match=name):
                FORMATS[kind].read(folder / name)


def test_folders_of_pictures_that_lead_elsewhere(place):
    numbers = count()

    def folder() -> Path:
        path = place / "read" / f"pictures{next(numbers)}"
        path.mkdir()
        (path / "a.png").write_bytes(FORMATS["PNG"].make())
        return path

    fifo, device, gone, linked, named = (folder() for _ in range(5))
    os.mkfifo(fifo / "b.png")
    (device / "b.png").symlink_to("/dev/zero")
    (gone / "b.png").symlink_to("/nowhere.png")
    (linked / "more").symlink_to(named, target_is_directory=True)
    (named / "dataset.json").write_bytes(b"[" * 2**21)
    reasons = {fifo: "regular", device: "regular", gone: "No such file", linked: "link", named: "bytes"}
    for path, says in reasons.items():
        with pytest.raises(InputError, match=rf"{path.name}.*{says}"):
            load_images(path)
