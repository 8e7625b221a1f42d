"""Worlds of processes that stay: each runs many cases, since starting one costs more than most of them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 120                                          # seconds for a case, on a busy machine
FORKS = multiprocessing.get_context("forkserver")       # what it has imported, its children need not
FORKS.set_forkserver_preload(["ranks.cases", "fpmc.engine.simd.kernels", "fpmc.engine.simd.gradients"])


class World:
    """`size` ranks over gloo on this machine."""

    def __init__(self, size: int) -> None:
        self.size, self.folder = size, tempfile.TemporaryDirectory()
        store = f"file://{Path(self.folder.name, 'store')}"
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = FORKS.Pipe()
            self.pipes.append(ours)
            self.processes.append(FORKS.Process(target=_serve, args=(theirs, rank, size, store), daemon=True))
            self.processes[-1].start()

    def run(self, case: Callable[..., Any], *args: Any) -> list[Any]:
        """What every rank answers to the same case; an error of one of them is ours."""
        for pipe in self.pipes:
            pipe.send((case, args))
        return [answer(pipe) for pipe in self.pipes]

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()
        self.folder.cleanup()


def answer(pipe: Connection) -> Any:
    assert pipe.poll(PATIENCE), "a rank does not answer"
    found, error = pipe.recv()
    assert not error, error
    return found


def _serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE)
    )
    while True:
        case, args = pipe.recv()
        try:
            pipe.send((case(*args), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))
