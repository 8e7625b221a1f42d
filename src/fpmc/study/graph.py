"""Tasks and their results: computed once, kept in files that know what made them, computed again when that changes.

A task is one unit of work (a noise level, a batch of seeds), so an interruption loses at most one of them. Commands
with the same folder do not repeat each other's work: a task that another process is at is waited for.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fpmc.errors import InputError
from fpmc.files import atomic
from fpmc.readers.tensors import read_safetensors
from fpmc.study.cluster import Unit
from fpmc.study.code import fingerprint

HEADER = "fpmc-result"
PATIENCE = 0.5                                          # seconds between looks at what other processes do


class Made(NamedTuple):
    """What a task's function gives back."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]                                # plain values, as JSON has them


class Work(NamedTuple):
    """What a task will cost: amounts of each kind of work (see `speed`), and bytes of memory at its peak."""

    amounts: dict[str, float]
    memory: float = 0.0


@dataclass(frozen=True, eq=False)
class Task:
    """One unit of work: a function, its settings, and the tasks whose results it takes."""

    name: str                                           # unique, with its kind in front: "samples/LS/seeds 0-15"
    function: Callable[..., Made]                       # called as function(lab, inputs, scratch, **settings)
    settings: dict[str, Any]                            # plain values
    inputs: tuple[Task, ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)    # what else decides it, e.g. checksums of files
    code: tuple[Any, ...] = ()                          # what the function picks by name: classes, other functions
    predict: Callable[[], Work] = lambda: Work({})

    @cached_property
    def key(self) -> str:
        """What the result depends on, as a hash: equal keys, equal results."""
        inputs = [task.key for task in self.inputs]
        code = fingerprint(self.function, *self.code)
        made_of = [self.name, code, self.settings, dict(self.stamps), inputs]
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    @property
    def kind(self) -> str:
        """The name without the unit: what a list of tasks sums up."""
        return self.name.rpartition("/")[0] or self.name


class Result:
    """What a task found; tensors stay in their file until asked for."""

    def __init__(self, path: Path, info: dict[str, Any], seconds: float) -> None:
        self.path, self.info, self.seconds = path, info, seconds

    @property
    def names(self) -> list[str]:
        """Of its tensors."""
        with safe_open(self.path, framework="pt") as file:
            return list(file.keys())

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor(name)


class Results:
    """Results by task."""

    def __init__(self) -> None:
        self._found: dict[str, Result] = {}

    def __getitem__(self, task: Task) -> Result:
        return self._found[task.key]

    def __contains__(self, task: Task) -> bool:
        return task.key in self._found

    def __setitem__(self, task: Task, result: Result) -> None:
        self._found[task.key] = result


class Cache:
    """A folder of results, each a safetensors file with its own checksum."""

    def __init__(self, path: Path, note: Callable[[str], object] = lambda _: None) -> None:
        self.path, self._note = path, note
        self._verified: dict[str, Result] = {}
        self._damaged: set[str] = set()                 # those that were reported

    def get(self, task: Task) -> Result | None:
        """The result of a task, if it is there and whole."""
        path = self.file(task)
        if task.key not in self._verified:
            if not path.exists():
                return None
            try:
                self._verified[task.key] = _read(path, task.key)
                self._sweep(task)                       # whoever made it may have been stopped before
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                if task.key not in self._damaged:
                    self._note(f"{path.name} is damaged ({error}) and will be computed again")
                self._damaged.add(task.key)
                return None
        return self._verified[task.key]

    def put(self, task: Task, made: Made, seconds: float) -> Result:
        """Keep a result, in one move."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in made.tensors.items()}
        header = {
            "name": task.name, "key": task.key, "settings": task.settings, "info": made.info, "seconds": seconds,
            "sha256": _checksum(tensors, made.info),
        }
        with atomic(self.file(task)) as part:
            save_file(tensors, part, {HEADER: json.dumps(header)})
        self._sweep(task)
        info = json.loads(json.dumps(made.info))        # as it will be read the next time
        self._verified[task.key] = Result(self.file(task), info, seconds)
        return self._verified[task.key]

    def scratch(self, task: Task) -> Path:
        """Where a task may keep what it needs to resume after an interruption; gone when it is done."""
        return self.path / "unfinished" / task.key[:24]

    def _claimed(self, task: Task) -> Path:
        return self.scratch(task).with_suffix(".lock")

    def _sweep(self, task: Task) -> None:
        """Take away what a task needs only as long as it has no result."""
        shutil.rmtree(self.scratch(task), ignore_errors=True)
        self._claimed(task).unlink(missing_ok=True)

    @contextmanager
    def claim(self, task: Task) -> Iterator[bool]:
        """Whether the task is this process's to compute; a claim ends with its process, whatever ends that."""
        path = self._claimed(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(path, blocking=False):
                yield True
        except Timeout:
            yield False

    def file(self, task: Task) -> Path:
        """Where the result of a task is, or will be."""
        name = re.sub(r"[^\w.+=-]+", "_", task.name)
        return self.path / f"{name[:100]}-{task.key[:16]}.safetensors"


def ordered(tasks: Iterable[Task]) -> list[Task]:
    """All tasks that these need and themselves, each once, inputs first."""
    found: dict[str, Task] = {}

    def visit(task: Task) -> None:
        if task.key not in found:
            for other in task.inputs:
                visit(other)
            found.setdefault(task.key, task)

    for task in tasks:
        visit(task)
    return list(found.values())


class Done(NamedTuple):
    """A task that has its result."""

    task: Task
    result: Result
    cached: bool                                        # it was there before


def run(tasks: Iterable[Task], lab: Any, cache: Cache, results: Results) -> Iterator[Done]:
    """Compute what is missing and no other process is at, then take what the others found; a record after each task."""
    waiting = ordered(tasks)
    while waiting:
        later = []
        for task in waiting:
            done = _settle(task, lab, cache, results)
            if done is None:
                later.append(task)
            else:
                results[task] = done.result
                yield done
        if len(later) == len(waiting):
            time.sleep(PATIENCE)
        waiting = later


def _settle(task: Task, lab: Any, cache: Cache, results: Results) -> Done | None:
    """The task with its result, found or computed; None if that is up to another process."""
    if any(other not in results for other in task.inputs):
        return None
    if (found := cache.get(task)) is not None:
        return Done(task, found, True)
    with cache.claim(task) as mine:
        if not mine:
            return None
        if (found := cache.get(task)) is not None:      # another process was quicker
            return Done(task, found, True)
        inputs = {other.name: results[other] for other in task.inputs}
        began = time.perf_counter()
        made = task.function(lab, inputs, cache.scratch(task), **task.settings)
        return Done(task, cache.put(task, made, time.perf_counter() - began), False)


def units_of(tasks: Sequence[Task], cache: Cache) -> list[Unit]:
    """The tasks that have no result yet, for `cluster.Where`; inputs come first."""
    units: dict[str, Unit] = {}
    for task in ordered(tasks):
        inputs = tuple(units[other.key]._replace(inputs=()) for other in task.inputs)
        memory = task.predict().memory
        units[task.key] = Unit(task.key, task.key, (cache.file(task).name,), task.kind, inputs, memory, checked=False)
    return [units[task.key] for task in ordered(tasks) if cache.get(task) is None]


def working(tasks: Iterable[Task], lab: Any, cache: Cache) -> Callable[[str], Iterator[tuple[str, str, float]]]:
    """What computes one of these tasks by its key, after its inputs, and tells (key, name, seconds) if it had to."""
    known, results = {task.key: task for task in ordered(tasks)}, Results()

    def work(key: str) -> Iterator[tuple[str, str, float]]:
        if key not in known:
            raise InputError("a worker has other code, data or weights than this command; give all machines the same")
        task = known[key]
        for other in task.inputs:
            if (found := cache.get(other)) is None:
                raise InputError(f"the result of {other.name} is gone or damaged; run the same command again")
            results[other] = found
        while (done := _settle(task, lab, cache, results)) is None:
            time.sleep(PATIENCE)
        if not done.cached:
            yield key, task.name, done.result.seconds

    return work


def _read(path: Path, key: str) -> Result:
    found = read_safetensors(path)
    header = found.config(HEADER) or {}
    checksum = _checksum(found.tensors, header["info"])
    if header["key"] != key or header["sha256"] != checksum:
        raise ValueError("its checksum does not match")
    return Result(path, header["info"], float(header["seconds"]))


def _checksum(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.flatten().numpy().data)
    return digest.hexdigest()
