"""Every figure and table of the paper as a graph of cached tasks. Nothing here imports torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from fpmc.errors import InputError

if TYPE_CHECKING:
    from fpmc.report.exhibit import Exhibit
    from fpmc.study.graph import Results, Task
    from fpmc.study.lab import Lab

EXPERIMENTS = {
    "table1": "the methods as (Q, R, V): shapes, distinct estimators, plan, cost (Table 1)",
    "fig-q": "response, Wiener row, Lukoianov's q and fine-tuned q at one noise level (Figure 1)",
    "fig-finetuning": "error by noise level, binary against soft Q and soft R, three methods (Figure 2)",
    "fig-augment": "relative change of the error by strategy, amount and noise level (Figure 3)",
    "table-results": "r² and MSE of samples against NCSN++ from the same seeds, all denoisers (Table 2)",
    "table-pairs": "its rows against each other, seed by seed: gains of the improvements, and how sure the order is",
    "fig-samples": "samples, the same seed in the same row, a column per denoiser (Figure 4)",
    "table-tau": "Lukoianov with τ = 0.02 and 0.05 (App. C.1)",
    "fig-multiscale": "error by noise level, every method beside multi-scale collections (beyond the paper)",
    "schedules": "our calibrated s(t), τ(t) beside the paper's tables (App. C.1)",
    "table-schedules": "samples with our calibrated schedules against those with the paper's",
}


def choose(names: Sequence[str]) -> tuple[str, ...]:
    """Experiments by name, in the paper's order; "all" is all of them."""
    for name in names:
        if name not in EXPERIMENTS and name != "all":
            close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(EXPERIMENTS)}, or all"
            raise InputError(f"no experiment {name!r}; {hint}")
    if not names:
        raise InputError(f"name at least one experiment: {', '.join(EXPERIMENTS)}, or all")
    return tuple(name for name in EXPERIMENTS if "all" in names or name in names)


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper: the tasks it wants, and what it shows once they have results."""

    tasks: list[Task]
    show: Callable[[Results], Exhibit]


def load(names: Iterable[str], lab: Lab) -> list[Experiment]:
    """The experiments of these names, for these data and networks."""
    return [import_module(f"fpmc.study.paper.{name.replace('-', '_')}").experiment(lab) for name in names]
