"""Commands as torchrun starts them, in processes that need not import everything again."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

import torch

from ranks.world import FORKS, PATIENCE


class Started:
    """One command on several ranks, each in a folder of its own; what they say goes to files."""

    def __init__(self, folder: Path, size: int, *args: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folders = [folder / f"rank{rank}" for rank in range(size)]
        self.processes = []
        for rank, place in enumerate(self.folders):
            place.mkdir(parents=True, exist_ok=True)
            settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
            settings |= {"MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            process = FORKS.Process(target=_command, args=(place, {k: str(v) for k, v in settings.items()}, args))
            process.start()
            self.processes.append(process)

    def codes(self) -> list[int | None]:
        """How the ranks ended; none of them may hang."""
        for process in self.processes:
            process.join(PATIENCE)
        found = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        return found

    def said(self, rank: int, stream: str = "err") -> str:
        return (self.folders[rank] / f"{stream}.txt").read_text(encoding="utf-8")


def _command(folder: Path, environment: dict[str, str], args: tuple[str, ...]) -> None:
    from fpmc.cli import main

    os.environ.update(environment)
    os.chdir(folder)
    tempfile.tempdir = str(folder.parent)               # processes that are killed leave something behind
    torch.set_num_threads(1)
    with Path("out.txt").open("w") as sys.stdout, Path("err.txt").open("w") as sys.stderr:
        sys.exit(main(list(args)))
