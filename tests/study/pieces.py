"""Units of work that take no time: numbers added up, each in a file."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpmc.errors import InputError
from fpmc.files import write_checked
from fpmc.study.cluster import Unit


@dataclass(frozen=True)
class Settings:
    """As a command's: `data` is a file that workers may not have."""

    data: str = "0"                                     # a number, or a file with one
    marks: str = ""                                     # a folder, for a mark whenever a unit begins
    dies: int = -1                                      # the unit whose first worker dies of it
    device: str = "cpu"


def make(settings: Settings, folder: Path) -> Callable[[Any], Iterator[Any]]:
    """What adds up the numbers in the files of a unit's inputs, and its own."""
    base = int(Path(settings.data).read_text()) if Path(settings.data).exists() else int(settings.data)

    def work(value: dict[str, Any]) -> Iterator[Any]:
        number, inputs = value["number"], value["inputs"]
        if (folder / f"{number}.txt").exists():         # what is there is not made again, as everywhere
            return
        if settings.marks:
            (Path(settings.marks) / f"{number}-{time.monotonic_ns()}").touch()
            if number == settings.dies and len(list(Path(settings.marks).glob(f"{number}-*"))) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if number == 13:
            raise InputError("13 is no number to add")
        yield {"began": number, "process": os.getpid()}
        time.sleep(value.get("seconds", 0))
        total = base + number + sum(int((folder / f"{each}.txt").read_text()) for each in inputs)
        write_checked(folder / f"{number}.txt", str(total))

    return work


def units(count: int, **more: Any) -> list[Unit]:
    """`count` units, and one that adds up theirs."""
    parts = [Unit(f"part {n}", {"number": n, "inputs": (), **more}, (f"{n}.txt",)) for n in range(count)]
    value = {"number": 100, "inputs": tuple(range(count))}
    return [*parts, Unit("total", value, ("100.txt",), "total", tuple(parts))]
