"""An experiment: the tasks it wants, and what it shows once they have results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

from fpmc.report.exhibit import Exhibit
from fpmc.study.graph import Results, Task
from fpmc.study.lab import Lab


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper."""

    tasks: list[Task]
    show: Callable[[Results], Exhibit]


def load(names: Iterable[str], lab: Lab) -> list[Experiment]:
    """The experiments of these names (see `EXPERIMENTS`), for these data and networks."""
    return [import_module(f"fpmc.study.paper.{name.replace('-', '_')}").experiment(lab) for name in names]
