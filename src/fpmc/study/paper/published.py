"""What the paper reports, to be shown beside what we find. Its schedules are in `fpmc.methods.schedules`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Literal

from fpmc.report.table import plus_minus

Dataset = Literal["cifar10", "ffhq", "afhq"]
TITLES: dict[str, str] = {"cifar10": "CIFAR-10", "ffhq": "FFHQ-64×64", "afhq": "AFHQ-64×64"}


def results(dataset: str, row: str) -> tuple[str, str]:
    """r² and MSE×10² of a row of the results table (Table 2) as the paper prints them, or dashes."""
    return _cells(_published()["results"][dataset].get(row))


def tau(dataset: str, value: float) -> tuple[str, str]:
    """The same for Lukoianov with this τ (App. C.1)."""
    return _cells(_published()["tau"][dataset].get(f"{value:g}"))


def _cells(entry: dict[str, list[float]] | None) -> tuple[str, str]:
    if entry is None:
        return "–", "–"
    return plus_minus(*entry["r2"], digits=2), plus_minus(*entry["mse"], digits=2)


@cache
def _published() -> dict[str, dict[str, dict[str, dict[str, list[float]]]]]:
    return json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
