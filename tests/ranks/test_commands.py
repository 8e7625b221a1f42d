"""Commands under torchrun: what they make is what one process makes, one rank writes, and nobody waits for the dead."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fpmc.cli import main
from fpmc.cli.ranks import SET_BY_TORCHRUN
from ranks.commands import Started

SAMPLE = ("--denoiser", "pspc_square:schedule=3", "--batch", "3", "--steps", "4", "--outdir", "run")
SHARDS = {
    "source": ("--shard", "source"), "seeds": ("--shard", "seeds"), "both": ("--shard", "both", "--mesh", "2", "2"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "data.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (37, 1, 8, 8), dtype=np.uint8))
    return str(path)


@pytest.fixture(scope="module")
def alone(data: str, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Samples of one process."""
    folder, before, threads = tmp_path_factory.mktemp("one"), Path.cwd(), torch.get_num_threads()
    torch.set_num_threads(1)
    os.chdir(folder)
    try:
        assert main(["sample", "--data", data, *SAMPLE, "--seeds", "0-6"]) == 0
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)
    return np.load(folder / "run" / "samples.npy")


@pytest.mark.parametrize("shard", SHARDS)
def test_samples_are_those_of_one_process(data: str, alone: np.ndarray, tmp_path: Path, shard: str) -> None:
    started = Started(tmp_path, 4, "sample", "--data", data, *SAMPLE, "--seeds", "0-4", *SHARDS[shard])
    assert started.codes() == [0, 0, 0, 0], [started.said(rank) for rank in range(4)]
    assert np.abs(np.load(tmp_path / "rank0" / "run" / "samples.npy") - alone[:5]).max() < 1e-6
    for rank in (1, 2, 3):
        assert started.said(rank) == started.said(rank, "out") == ""
        assert sorted(path.name for path in started.folders[rank].iterdir()) == ["err.txt", "out.txt"]


def test_a_run_goes_on_with_another_number_of_ranks(data: str, alone: np.ndarray, tmp_path: Path) -> None:
    for size, seeds in ((2, "0-2"), (3, "0-6")):
        started = Started(tmp_path, size, "sample", "--data", data, *SAMPLE, "--seeds", seeds)
        assert started.codes() == [0] * size, [started.said(rank) for rank in range(size)]
    run = tmp_path / "rank0" / "run"
    assert np.abs(np.load(run / "samples.npy") - alone).max() < 1e-6
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [seed for event in events for seed in event["seeds"]] == list(range(7))     # none of them twice


def test_ranks_with_other_images_are_refused(data: str, tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}").mkdir()
        np.save(tmp_path / f"rank{rank}" / "data.npy", np.load(data)[rank:])
    started = Started(tmp_path, 2, "sample", "--data", "data.npy", *SAMPLE)
    assert started.codes() == [2, 2]
    assert "other data or settings" in started.said(1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_ends_the_others(data: str, tmp_path: Path, how: signal.Signals) -> None:
    args = ("--data", data, *SAMPLE[:4], "--steps", "50000", "--outdir", "run", "--timeout", "3")
    started = Started(tmp_path, 3, "sample", *args)
    until = time.monotonic() + 60
    while not (tmp_path / "rank0" / "run" / "unfinished.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(started.processes[2].pid, how)
    for rank in (0, 1):
        started.processes[rank].join(60)
    ended = [started.processes[rank].exitcode for rank in (0, 1)]
    for process in started.processes:
        process.kill()
    assert ended == [2, 2]
    assert all("another rank has ended" in started.said(rank) for rank in (0, 1))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("sample", "--shard", "source"), "torchrun"),
        (("sample", "--shard", "both"), "--mesh"),
        (("sample", "--mesh", "1", "2"), "--shard both"),
        (("finetune", "--shard", "seeds"), "no seeds to split"),
        (("fit", "--timeout", "0"), "--timeout 0"),
    ],
)
def test_bad_use_is_refused(args: tuple[str, ...], words: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(list(args)) == 2
    assert words in capsys.readouterr().err


def test_what_ranks_cannot_do_is_refused(data: str, tmp_path: Path) -> None:
    for number, (args, words) in enumerate([
        (("demo",), "without torchrun"), (("sample", "--shard", "both", "--mesh", "2", "2"), "for 4 ranks"),
    ]):
        started = Started(tmp_path / str(number), 2, *args)
        assert started.codes() == [2, 2]
        assert words in started.said(0)


def test_templates_are_not_for_ranks(capsys, monkeypatch) -> None:
    for name in SET_BY_TORCHRUN:
        monkeypatch.setenv(name, "1")
    assert main(["finetune", "--recipe", "templates"]) == 2
    assert "--recipe paper" in capsys.readouterr().err
