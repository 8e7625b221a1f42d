"""Steps and their results: computed once, kept in files that know what made them, computed again when that changes.

A step is one unit of work (a noise level, a batch of seeds), so an interruption loses at most one of them. Processes
with the same folder share the work: each takes steps that no other is at.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fpmc.files import atomic

try:
    import fcntl
except ImportError:                                     # not on Windows, where two processes may do the same twice
    fcntl = None

HEADER = "fpmc-result"
PATIENCE = 0.5                                          # seconds between looks at what other processes do


class Made(NamedTuple):
    """What a step's function gives back."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]                                # plain values, as JSON has them


class Work(NamedTuple):
    """What a step will cost: amounts of each kind of work (see `speed`), and bytes of memory at its peak."""

    amounts: dict[str, float]
    memory: float = 0.0


@dataclass(frozen=True, eq=False)
class Step:
    """One unit of work: a function, its settings, and the steps whose results it takes."""

    name: str                                           # unique, with its kind in front: "samples/LS/seeds 0-15"
    function: Callable[..., Made]                       # called as function(lab, inputs, scratch, **settings)
    settings: dict[str, Any]                            # plain values
    inputs: tuple[Step, ...] = ()
    stamps: Mapping[str, str] = field(default_factory=dict)    # what else decides it, e.g. checksums of files
    predict: Callable[[], Work] = lambda: Work({})
    version: int = 1                                    # to be raised when the function's results change

    @cached_property
    def key(self) -> str:
        """What the result depends on, as a hash: equal keys, equal results."""
        inputs = [step.key for step in self.inputs]
        made_of = [self.name, self.function.__name__, self.version, self.settings, dict(self.stamps), inputs]
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()

    @property
    def kind(self) -> str:
        """The name without the unit: what a list of steps sums up."""
        return self.name.rpartition("/")[0] or self.name


class Result:
    """What a step found; tensors stay in their file until asked for."""

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
    """Results by step."""

    def __init__(self) -> None:
        self._found: dict[str, Result] = {}

    def __getitem__(self, step: Step) -> Result:
        return self._found[step.key]

    def __contains__(self, step: Step) -> bool:
        return step.key in self._found

    def __setitem__(self, step: Step, result: Result) -> None:
        self._found[step.key] = result


class Cache:
    """A folder of results, each a safetensors file with its own checksum."""

    def __init__(self, path: Path, note: Callable[[str], object] = lambda _: None) -> None:
        self.path, self._note = path, note
        self._verified: dict[str, Result] = {}
        self._damaged: set[str] = set()                 # those that were told of

    def get(self, step: Step) -> Result | None:
        """The result of a step, if it is there and whole."""
        path = self._place(step)
        if step.key not in self._verified:
            if not path.exists():
                return None
            try:
                self._verified[step.key] = _read(path, step.key)
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                if step.key not in self._damaged:
                    self._note(f"{path.name} is damaged ({error}) and will be computed again")
                self._damaged.add(step.key)
                return None
        return self._verified[step.key]

    def put(self, step: Step, made: Made, seconds: float) -> Result:
        """Keep a result, in one step."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in made.tensors.items()}
        header = {
            "name": step.name, "key": step.key, "settings": step.settings, "info": made.info, "seconds": seconds,
            "sha256": _checksum(tensors, made.info),
        }
        with atomic(self._place(step)) as part:
            save_file(tensors, part, {HEADER: json.dumps(header)})
        shutil.rmtree(self.scratch(step), ignore_errors=True)
        info = json.loads(json.dumps(made.info))        # as it will be read the next time
        self._verified[step.key] = Result(self._place(step), info, seconds)
        return self._verified[step.key]

    def scratch(self, step: Step) -> Path:
        """Where a step may keep what it needs to go on after an interruption; gone when it is done."""
        return self.path / "unfinished" / step.key[:24]

    @contextmanager
    def claim(self, step: Step) -> Iterator[bool]:
        """Whether the step is this process's to compute; a claim ends with its process, whatever ends that."""
        if fcntl is None:
            yield True
            return
        self._lock(step).parent.mkdir(parents=True, exist_ok=True)
        with self._lock(step).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
                if self._place(step).exists():          # computed, now or by another process before
                    self._lock(step).unlink(missing_ok=True)

    def _lock(self, step: Step) -> Path:
        return self.scratch(step).with_suffix(".lock")

    def _place(self, step: Step) -> Path:
        name = re.sub(r"[^\w.+=-]+", "_", step.name)
        return self.path / f"{name[:100]}-{step.key[:16]}.safetensors"


def ordered(steps: Iterable[Step]) -> list[Step]:
    """All steps that these need and themselves, each once, inputs first."""
    found: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.key not in found:
            for other in step.inputs:
                visit(other)
            found.setdefault(step.key, step)

    for step in steps:
        visit(step)
    return list(found.values())


class Done(NamedTuple):
    """A step that has its result."""

    step: Step
    result: Result
    cached: bool                                        # it was there before


def run(steps: Iterable[Step], lab: Any, cache: Cache, results: Results) -> Iterator[Done]:
    """Compute what is missing and no other process is at, then take what the others found; a record after each step."""
    waiting = ordered(steps)
    while waiting:
        later = []
        for step in waiting:
            done = _settle(step, lab, cache, results)
            if done is None:
                later.append(step)
            else:
                results[step] = done.result
                yield done
        if len(later) == len(waiting):
            time.sleep(PATIENCE)
        waiting = later


def _settle(step: Step, lab: Any, cache: Cache, results: Results) -> Done | None:
    """The step with its result, found or computed; None if that is up to another process."""
    if any(other not in results for other in step.inputs):
        return None
    if (found := cache.get(step)) is not None:
        return Done(step, found, True)
    with cache.claim(step) as mine:
        if not mine:
            return None
        if (found := cache.get(step)) is not None:      # another process was quicker
            return Done(step, found, True)
        inputs = {other.name: results[other] for other in step.inputs}
        began = time.perf_counter()
        made = step.function(lab, inputs, cache.scratch(step), **step.settings)
        return Done(step, cache.put(step, made, time.perf_counter() - began), False)


def _read(path: Path, key: str) -> Result:
    with safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})[HEADER])
        checksum = _checksum({name: file.get_tensor(name) for name in file.keys()}, header["info"])  # noqa: SIM118
    if header["key"] != key or header["sha256"] != checksum:
        raise ValueError("its checksum is another")
    return Result(path, header["info"], float(header["seconds"]))


def _checksum(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.flatten().numpy().data)
    return digest.hexdigest()
