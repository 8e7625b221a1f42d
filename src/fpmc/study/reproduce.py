"""All of it: what is to be done and how long it takes, doing it, and the page that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fpmc.report.exhibit import Exhibit
from fpmc.report.page import page
from fpmc.report.run import RunDirectory, environment, versions
from fpmc.study import predict
from fpmc.study.experiment import Experiment
from fpmc.study.graph import Cache, Results, Step, ordered, run
from fpmc.study.lab import Lab


@dataclass(frozen=True)
class Forecast:
    """Steps of one kind: how many, how many of them are done, and what the others will take."""

    kind: str
    units: int
    cached: int
    seconds: float
    memory: float                                       # bytes, of the largest


def forecast(lab: Lab, experiments: Sequence[Experiment], cache: Cache) -> list[Forecast]:
    """What `reproduce` would do, by kind of step, on this machine."""
    steps = steps_of(experiments)
    seconds = predicted(lab, steps, cache)
    kinds: dict[str, list[Step]] = {}
    for step in steps:
        kinds.setdefault(step.kind, []).append(step)
    return [
        Forecast(
            kind, len(each), sum(step.key not in seconds for step in each),
            sum(seconds.get(step.key, 0.0) for step in each), max(step.predict().memory for step in each),
        )
        for kind, each in kinds.items()
    ]


def reproduce(
    lab: Lab,
    experiments: Sequence[Experiment],
    directory: RunDirectory,
    cache: Cache,
    *,
    command: str,                                       # that makes the same again, for the page
    progress: Callable[[str, float, float], object] = lambda *_: None,     # (step, seconds done, seconds in all)
) -> list[Exhibit]:
    """Run experiments, each to its tables and figures as soon as it is done; index.html has all so far."""
    seconds = predicted(lab, steps_of(experiments), cache)
    total, done = sum(seconds.values()), 0.0
    results, spent, exhibits = Results(), {}, []
    for experiment in experiments:
        for step, result, cached in run(experiment.steps, lab, cache, results):
            spent[step.key] = (step.kind, result.seconds)
            if not cached:
                done += seconds.get(step.key, 0.0)
                directory.note(f"{step.name}: {result.seconds:.1f} s")
                progress(step.name, done, total)
        exhibit = experiment.show(results)
        exhibit.write(directory)
        exhibits.append(exhibit)
        directory.metrics({each.name: each.records for each in exhibits})
        directory.write_text("index.html", _page(lab, exhibits, directory.path, command, spent.values()))
    return exhibits


def steps_of(experiments: Iterable[Experiment]) -> list[Step]:
    """All that experiments need, each step once, inputs first."""
    return ordered(step for experiment in experiments for step in experiment.steps)


def predicted(lab: Lab, steps: Sequence[Step], cache: Cache) -> dict[str, float]:
    """Seconds of the steps that have no result yet, by key."""
    missing = {step.key: step.predict() for step in steps if cache.get(step) is None}
    speed = predict.measure(lab, sorted({kind for work in missing.values() for kind in work.amounts}))
    return {key: predict.seconds(work, speed) for key, work in missing.items()}


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
        "Time": {"all steps": clock(sum(times.values())), **{kind: clock(seconds) for kind, seconds in times.items()}},
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


def clock(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
