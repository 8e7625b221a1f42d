"""Run directories: everything a command was told, ran on and found, whole at any moment and ready to go on."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import pydantic
from PIL.Image import Image

from fpmc.errors import InputError
from fpmc.files import atomic, lock, settle, sweep, verify, write_checked, writing
from fpmc.readers.text import read_json, read_lines


class RunConfig(pydantic.BaseModel):
    """config.json: what made the run. Unknown keys are refused, so that a setting is never silently dropped."""

    model_config = pydantic.ConfigDict(extra="forbid")

    command: str
    settings: dict[str, Any]        # as given, seeds included
    versions: dict[str, str]


class RunDirectory:
    """A folder with config.json, environment.json, metrics.json, metrics.jsonl, log.txt and pictures.

    Opened again with the same settings it goes on (`resumed`); with others it is refused. Settings named in `free` may
    change between two sittings (more seeds, another batch size): they do not change what is already there. While it is
    open no other process can open it; the lock ends with `close`, with the object, or with the process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Any,                        # a mapping or a dataclass of plain values
        *,
        command: str,
        free: Collection[str] = (),
    ) -> None:
        self.path = Path(path)
        settings = dataclasses.asdict(config) if dataclasses.is_dataclass(config) else dict(config)  # pyright: ignore[reportArgumentType]
        self.config = RunConfig(command=command, settings=_plain(settings), versions=versions())
        self._lock = lock(self.path)
        try:
            self._open(command, free)
        except BaseException:
            self.close()
            raise

    def _open(self, command: str, free: Collection[str]) -> None:
        self.resumed = (self.path / "config.json").exists()
        if self.resumed:
            self._check_same(read_config(self.path), free)
        elif self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise InputError(f"{str(self.path)!r} holds files that are no run of fpmc; choose another --outdir")
        sweep(self.path, deep=True)
        self.write_json("config.json", self.config.model_dump())
        self.write_json("environment.json", environment())
        _drop_torn_line(self.path / "metrics.jsonl")
        self.note(f"fpmc {command} {'resumed' if self.resumed else 'started'}")

    def close(self) -> None:
        """Let other processes write here."""
        self._lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_same(self, before: RunConfig, free: Collection[str]) -> None:
        old, new = ({"command": c.command, **c.settings} for c in (before, self.config))
        for key in [*new, *old]:
            if key not in free and old.get(key) != new.get(key):
                raise InputError(
                    f"{str(self.path)!r} holds another run: {key} was {json.dumps(old.get(key))}, now it is "
                    f"{json.dumps(new.get(key))}; choose another --outdir, delete that folder, or repeat its settings"
                )

    def atomic(self, name: str) -> AbstractContextManager[Path]:
        """A temporary path that becomes the file `name` of the run when the block succeeds."""
        return atomic(self.path / name)

    def write_checked(self, name: str, content: bytes | str | Callable[[Path], object]) -> None:
        """A file to go on from: written in one step, with its checksum (see `fpmc.files.write_checked`)."""
        write_checked(self.path / name, content)

    def kept(self, name: str) -> Path | None:
        """The file `name` of an earlier sitting, its checksum compared; None if there is none."""
        path = self.path / name
        if not path.exists():
            return None
        verify(path)
        settle(path)
        return path

    def write_text(self, name: str, text: str) -> None:
        with self.atomic(name) as part:
            part.write_text(f"{text}\n", encoding="utf-8")

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(_plain(value), indent=2, ensure_ascii=False))

    def picture(self, name: str, image: Image) -> Path:
        with self.atomic(name) as part:
            image.save(part, optimize=True)
        return self.path / name

    def metrics(self, values: Mapping[str, Any]) -> None:
        """The results, as metrics.json."""
        self.write_json("metrics.json", values)

    def event(self, **values: Any) -> None:
        """One line of metrics.jsonl: how something stood at some moment."""
        line = json.dumps(_plain({"time": round(time.time(), 3), **values}), ensure_ascii=False) + "\n"
        self._append("metrics.jsonl", line)

    def events(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl so far."""
        path = self.path / "metrics.jsonl"
        return read_lines(path) if path.exists() else []

    def note(self, text: str) -> None:
        """A line of log.txt, with the time."""
        self._append("log.txt", "".join(f"{_now()}  {line}\n" for line in text.splitlines() or [""]))

    def _append(self, name: str, text: str) -> None:
        with writing(self.path / name), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def say(self, text: str) -> None:
        """Print, and keep in log.txt."""
        print(text, flush=True)
        self.note(text)


def read_config(path: str | os.PathLike[str]) -> RunConfig:
    """The config.json of a run directory."""
    file = Path(path) / "config.json"
    if not file.is_file():
        raise InputError(f"cannot read {str(file)!r}: it is not there; give a run directory of fpmc")
    try:
        return RunConfig.model_validate(read_json(file, kind=dict))
    except pydantic.ValidationError as error:
        why = error.errors()[0]
        where = ".".join(map(str, why["loc"]))[:60]
        raise InputError(f"{str(file)!r} is no run's config ({where}: {why['msg']}); choose another folder") from error


def versions() -> dict[str, str]:
    """Versions of what decides a result."""
    found = {"python": platform.python_version()}
    for name in ("fpmc", "torch", "numpy", "numba"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def environment() -> dict[str, Any]:
    """The machine a run is on, as far as speed and rounding depend on it."""
    import torch

    return {
        "time": _now(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _drop_torn_line(path: Path) -> None:
    """A kill can leave half a line at the end of a file that is only ever appended to."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with atomic(path) as part:
            part.write_bytes(text[: text.rfind(b"\n") + 1])


def _plain(value: Any) -> Any:
    """The same value as JSON has it: string keys, lists, no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.tolist() if hasattr(value, "tolist") else str(value)
