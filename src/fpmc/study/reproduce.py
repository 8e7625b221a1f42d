"""All of it: what is to be done and how long it takes, doing it, and the page that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fpmc.report.exhibit import Exhibit
from fpmc.report.page import page
from fpmc.report.run import RunDirectory, environment, versions
from fpmc.report.table import clock
from fpmc.study import predict
from fpmc.study.graph import Cache, Results, Task, Work, ordered, run
from fpmc.study.lab import Lab
from fpmc.study.paper import Experiment


@dataclass(frozen=True)
class Forecast:
    """Tasks of one kind: how many, how many of them are done, and what the others will take."""

    kind: str
    units: int
    cached: int
    seconds: float
    memory: float                                       # bytes, of the largest


def forecast(lab: Lab, experiments: Sequence[Experiment], cache: Cache) -> list[Forecast]:
    """What `reproduce` would do, by kind of task, on this machine."""
    tasks = tasks_of(experiments)
    works = {task.key: task.predict() for task in tasks}
    seconds = predicted(lab, tasks, cache, works)
    kinds: dict[str, list[str]] = {}
    for task in tasks:
        kinds.setdefault(task.kind, []).append(task.key)
    return [
        Forecast(
            kind, len(keys), sum(key not in seconds for key in keys),
            sum(seconds.get(key, 0.0) for key in keys), max(works[key].memory for key in keys),
        )
        for kind, keys in kinds.items()
    ]


def reproduce(
    lab: Lab,
    experiments: Sequence[Experiment],
    directory: RunDirectory,
    cache: Cache,
    *,
    command: str,                                       # that makes the same again, for the page
    progress: Callable[[float, float, str], object] = lambda *_: None,     # (seconds done, seconds in all, task)
) -> list[Exhibit]:
    """Run experiments, each to its tables and figures as soon as it is done; index.html has all so far."""
    seconds = predicted(lab, tasks_of(experiments), cache)
    total, done = sum(seconds.values()), 0.0
    results, spent, exhibits = Results(), {}, []
    for experiment in experiments:
        for task, result, cached in run(experiment.tasks, lab, cache, results):
            spent[task.key] = (task.kind, result.seconds)
            if not cached:
                done += seconds.get(task.key, 0.0)
                directory.note(f"{task.name}: {result.seconds:.1f} s")
                progress(done, total, task.name)
        exhibit = experiment.show(results)
        exhibit.write(directory)
        exhibits.append(exhibit)
        directory.metrics({each.name: each.records for each in exhibits})
        directory.write_text("index.html", _page(lab, exhibits, directory.path, command, spent.values()))
    return exhibits


def tasks_of(experiments: Iterable[Experiment]) -> list[Task]:
    """All that experiments need, each task once, inputs first."""
    return ordered(task for experiment in experiments for task in experiment.tasks)


def predicted(
    lab: Lab, tasks: Sequence[Task], cache: Cache, works: Mapping[str, Work] | None = None
) -> dict[str, float]:
    """Seconds of the tasks that have no result yet, by key; corrected by what others of their kind really took."""
    work = works or {task.key: task.predict() for task in tasks}
    timed = predict.measure(lab, sorted({kind for each in work.values() for kind in each.amounts}))
    expected = {key: predict.seconds(each, timed) for key, each in work.items()}
    ratios: dict[str, list[float]] = {}
    for task in tasks:
        if (done := cache.get(task)) is not None and expected[task.key] > 0:
            ratios.setdefault(task.kind, []).append(done.seconds / expected[task.key])
    usual = {kind: median(found) for kind, found in ratios.items()}
    return {task.key: expected[task.key] * usual.get(task.kind, 1.0) for task in tasks if cache.get(task) is None}


def _page(
    lab: Lab, exhibits: Sequence[Exhibit], folder: Path, command: str, spent: Iterable[tuple[str, float]]
) -> str:
    images = lab.images
    shape = "×".join(map(str, images.shape))
    times: dict[str, float] = {}
    for kind, seconds in spent:
        times[kind] = times.get(kind, 0.0) + seconds
    held_out = f"{len(lab.held_out):,} " + ("test images" if lab.given_held_out is not None else "network samples")
    facts: Mapping[str, Mapping[str, str]] = {
        "Settings": {
            "data": f"{images.name}, {len(images):,} images of {shape}",
            "held out": held_out,
            "sampling": f"Heun, {lab.steps} noise levels from 80 to 0.002, ρ = 7",
            **{f"sha256 of {name}": stamp[:16] for name, stamp in lab.stamps.items()},
            **{name.replace("_", " "): _text(value) for name, value in asdict(lab.scale).items()},
        },
        "Machine and versions": {name: str(value) for name, value in (environment() | versions()).items()},
        "Time": {"all tasks": clock(sum(times.values())), **{kind: clock(seconds) for kind, seconds in times.items()}},
    }
    lead = f"{len(images):,} images of {images.name} ({shape}), {lab.scale.name} scale, made with fpmc."
    return page("Filtered posterior mean collections", lead, exhibits, folder=folder, command=command, facts=facts)


def _text(value: Any) -> str:
    """A setting as one would say it."""
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_text(each)}" for name, each in value.items())
    if isinstance(value, tuple):
        return " ".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
