"""An experiment: the steps it wants, and what it shows once they have results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

from fpmc.experiments.graph import Results, Step
from fpmc.experiments.lab import Lab
from fpmc.report.exhibit import Exhibit


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper."""

    steps: list[Step]
    show: Callable[[Results], Exhibit]


def load(names: Iterable[str], lab: Lab) -> list[Experiment]:
    """The experiments of these names (see `EXPERIMENTS`), for these data and networks."""
    return [import_module(f"fpmc.experiments.{name.replace('-', '_')}").experiment(lab) for name in names]
