"""Writing when things go wrong: full disks, vanished folders, kills at any moment, two processes at once."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from faults.formats import network
from fpmc import files
from fpmc.data import pack, store
from fpmc.errors import InputError
from fpmc.files import atomic, read_checked, sweep, verify, write_checked
from fpmc.images import ImageSet
from fpmc.networks import save_network
from fpmc.readers.arrays import read_npy
from fpmc.report.run import RunDirectory

NOISE = np.random.default_rng(0).integers(0, 256, (40, 3, 100, 100), dtype=np.uint8)  # 1.2 MB that do not shrink


@pytest.fixture(params=["a full file system", "a limit on file sizes"])
def full(request, tmp_path) -> Iterator[Path]:
    """A folder in which a file of a megabyte does not fit."""
    if request.param == "a limit on file sizes":
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
        yield tmp_path
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return
    (tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path / "disk")]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)


def through(write: Callable[[Path], Any]) -> Callable[[Path], None]:
    def call(path: Path) -> None:
        with atomic(path) as part:
            write(part)

    return call


def to_npy(part: Path, array: np.ndarray) -> None:
    with part.open("wb") as file:
        np.save(file, array)


def into_run(path: Path) -> None:
    run = RunDirectory(path.parent / "run", {}, command="test")
    run.picture("picture.png", Image.fromarray(NOISE.reshape(1000, 1200)))


def large_network(path: Path) -> None:
    net = network()
    net.register_buffer("ballast", torch.zeros(400_000))
    try:
        save_network(net, path)
    finally:
        del net.ballast


WRITERS: dict[str, Callable[[Path], Any]] = {
    "bytes": through(lambda part: part.write_bytes(NOISE.tobytes())),
    "numpy": through(lambda part: to_npy(part, NOISE)),
    "torch": through(lambda part: torch.save(torch.from_numpy(NOISE), part)),
    "safetensors": through(lambda part: save_file({"a": torch.from_numpy(NOISE)}, part)),
    "picture": through(lambda part: Image.fromarray(NOISE.reshape(1000, 1200)).save(part)),
    "checked": lambda path: write_checked(path, NOISE.tobytes()),
    "zip": lambda path: pack(ImageSet(NOISE), path.with_suffix(".zip")),
    "network": large_network,
    "run": into_run,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_is_one_line_and_loses_nothing(kind, full):
    path = full / "file.png"
    path.write_bytes(b"before")
    with pytest.raises(InputError, match=r"cannot write '.*': the disk is full; free some space") as error:
        WRITERS[kind](path)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == b"before"
    assert not list(full.rglob("*.part*"))


def test_a_run_goes_on_when_there_is_room_again(full):
    run = RunDirectory(full / "run", {}, command="test")
    run.write_checked("state.npy", b"first")
    line = "x" * 2000

    def fill() -> None:
        for _ in range(1000):
            run.event(note=line)

    with pytest.raises(InputError, match=r"metrics.jsonl.*disk is full"):
        fill()
    run.close()
    (full / "run" / "log.txt").unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    whole = [json.loads(text) for text in (full / "run" / "metrics.jsonl").read_text().splitlines()[:-1]]
    (full / "run" / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in whole[:10]) + '{"torn')
    again = RunDirectory(full / "run", {}, command="test")
    assert again.resumed
    assert len(again.events()) == 10
    assert read_checked(again.path / "state.npy") == b"first"


def test_decoded_pixels_that_do_not_fit(full, monkeypatch):
    monkeypatch.setenv("FPMC_HOME", str(full / "home"))
    monkeypatch.setattr(store, "LARGE", 0)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2**40, 0, 2**40))  # pyright: ignore
    with pytest.raises(InputError, match="disk is full"):
        store.gather(NOISE.shape, [NOISE], "key")
    assert not list((full / "home").rglob("*.npy"))


def test_a_folder_that_is_gone(tmp_path):
    def lose() -> None:
        with atomic(tmp_path / "run" / "file") as part:
            shutil.rmtree(tmp_path / "run")
            part.write_bytes(b"x")

    with pytest.raises(InputError, match=r"cannot write '.*file'.*gone"):
        lose()
    run = RunDirectory(tmp_path / "run", {}, command="test")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(InputError, match=r"cannot write '.*metrics.jsonl'.*gone"):
        run.event(step=1)


def test_a_folder_one_may_only_read(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=400k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with pytest.raises(InputError, match=r"cannot write '.*file'.*Read-only.*choose a folder you may write to"):
            write_checked(disk / "file", b"x")
        with pytest.raises(InputError, match=r"cannot write '.*run'.*Read-only.*choose a folder you may write to"):
            RunDirectory(disk / "run", {}, command="test")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_file_in_the_way_of_a_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "x", tmp_path / "file" / "deep" / "x"):
        with pytest.raises(InputError, match=r"cannot write '.*x'"):
            write_checked(path, b"")


def test_errors_about_other_files_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), atomic(tmp_path / "x"):
        (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(ZeroDivisionError), atomic(tmp_path / "x"):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())


def test_flipped_bits_are_noticed(tmp_path):
    path = tmp_path / "state.pt"
    assert not path.with_name(".state.pt.sha256").exists()
    write_checked(path, "content")
    assert read_checked(path) == b"content"
    assert verify(path)
    for position in range(7):
        content = bytearray(b"content")
        content[position] ^= 1
        path.write_bytes(bytes(content))
        with pytest.raises(InputError, match=r"state.pt' is damaged.*delete it to compute it again"):
            read_checked(path)
    write_checked(path, lambda part: part.write_bytes(b"new"))
    assert read_checked(path) == b"new"
    path.with_name(".state.pt.sha256").write_bytes(b"")
    with pytest.raises(InputError, match="damaged"):
        verify(path)
    path.with_name(".state.pt.sha256").unlink()
    assert not verify(path)


@pytest.mark.parametrize("moment", range(1, 4))
def test_a_kill_between_a_file_and_its_checksum_is_harmless(moment, tmp_path, monkeypatch):
    path = tmp_path / "state"
    write_checked(path, b"old")
    steps = iter(range(1, 10))

    def replace(part: Path, target: Path) -> None:
        if next(steps) == moment:
            raise KeyboardInterrupt
        os.rename(part, target)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_checked(path, b"new")
    monkeypatch.undo()
    assert verify(path)
    assert path.read_bytes() == (b"new" if moment == 3 else b"old")
    write_checked(path, b"next")
    assert read_checked(path) == b"next"


def forked(work: Callable[[], object]) -> int:
    """Run something in a process of its own; its id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def wait_for(path: Path) -> None:
    for _ in range(1000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError(path)


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_killed_writer_leaves_is_swept(tmp_path):
    def hang() -> None:
        with atomic(tmp_path / "run" / "file.npy") as part:
            part.write_bytes(b"half")
            (tmp_path / "ready").touch()
            time.sleep(60)

    child = forked(hang)
    wait_for(tmp_path / "ready")
    (left,) = (tmp_path / "run").iterdir()
    assert sweep(tmp_path / "run") == 0  # its writer lives
    assert left.exists()
    end(child)
    (tmp_path / "run" / ".mine").touch()
    files._swept.clear()
    with atomic(tmp_path / "run" / "other") as part:
        part.write_bytes(b"")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".mine", "other"]


def test_two_processes_cannot_write_into_one_run(tmp_path):
    def hold() -> None:
        with RunDirectory(tmp_path / "run", {"a": 1}, command="test"):
            (tmp_path / "ready").touch()
            time.sleep(60)

    child = forked(hold)
    wait_for(tmp_path / "ready")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(InputError, match=r"another process is writing into '.*run'.*choose another --outdir"):
        RunDirectory(tmp_path / "run", {"a": 1}, command="test")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    end(child)
    with RunDirectory(tmp_path / "run", {"a": 1}, command="test") as run:
        assert run.resumed


def job(path: Path, steps: int = 30) -> None:
    """Work of many steps that can go on: each state follows from the one before."""
    with RunDirectory(path, {}, command="job") as run:
        kept = run.kept("state.npy")
        state = np.zeros(1000) if kept is None else read_npy(kept)
        while state[0] < steps:
            state = np.concatenate([state[:1] + 1, np.sin(state[1:] + state[0] + np.arange(999))])
            run.write_checked("state.npy", lambda part, state=state: to_npy(part, state))
            run.event(step=int(state[0]))


def test_kills_at_random_moments_change_nothing(tmp_path):
    began = time.perf_counter()
    job(tmp_path / "whole")
    usual, rng, kills = time.perf_counter() - began, random.Random(0), 0
    while True:
        child = forked(lambda: job(tmp_path / "killed"))
        time.sleep(usual * rng.uniform(0.02, 0.25) * (1 + kills / 10))         # longer and longer, so that it ends
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            break
        end(child)
        kills += 1
    assert kills >= 3
    assert (tmp_path / "killed" / "state.npy").read_bytes() == (tmp_path / "whole" / "state.npy").read_bytes()
    assert not list((tmp_path / "killed").rglob("*.part*"))
