"""Hyper-parameter schedules s(t), τ(t): the three tables of the paper's appendix (App. C.1) as data, and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fpmc.errors import InputError
from fpmc.readers.text import read_json

Schedule = str | PathLike[str] | Mapping[float, float] | float | None
SHIPPED = ("cifar10", "ffhq", "afhq")
METHODS = ("pspc_square", "ls", "els", "pspc_flex", "lukoianov")


class Table(BaseModel):
    """A schedule file: the noise levels t, and for each method a value at each t."""

    model_config = ConfigDict(extra="forbid")

    resolution: int
    t: list[float]
    pspc_square: list[int] | None = None
    ls: list[int] | None = None
    els: list[int] | None = None
    pspc_flex: list[float] | None = None
    lukoianov: list[float] | None = None

    def column(self, method: str) -> dict[float, float]:
        """{t: value} of one method."""
        values = getattr(self, method)
        if values is None:
            raise InputError(f"this schedule has no column for {method}; it has {', '.join(self.methods)}")
        return dict(zip(self.t, values, strict=True))

    @property
    def methods(self) -> list[str]:
        return [method for method in METHODS if getattr(self, method) is not None]


def read_table(name: str | PathLike[str]) -> Table:
    """A shipped table by name, or a schedule file by path."""
    path = Path(__file__).parent / f"{name}.json" if name in SHIPPED else Path(name)
    if not path.is_file():
        choice = f"one of {', '.join(SHIPPED)}, a file, a number or a dict {{sigma: value}}"
        raise InputError(f"no schedule {str(name)!r}; use {choice}")
    try:
        table = Table.model_validate(read_json(path, 2**20, kind=dict))
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()
        raise InputError(f"{path.name} is not a schedule file: {' '.join(first[:3])}") from error
    for method in table.methods:
        count = len(getattr(table, method))
        if count != len(table.t):
            raise InputError(f"{path.name}: {method} has {count} values for {len(table.t)} noise levels")
    return table


def resolve(schedule: Schedule, method: str, shape: tuple[int, int, int]) -> dict[float, float]:
    """{σ: value} from a table's name, a file, a dict, one number, or None for the default of this resolution."""
    _, height, width = shape
    if schedule is None:
        return default(method, min(height, width))
    if isinstance(schedule, Mapping):
        try:
            values = {float(sigma): float(value) for sigma, value in schedule.items()}
        except (TypeError, ValueError) as error:
            raise InputError(f"a schedule needs a number for each noise level, got {dict(schedule)}") from error
    elif isinstance(schedule, bool) or not isinstance(schedule, int | float | str | PathLike):
        raise InputError(f"schedule {schedule!r:.60}: give a number, a dict {{sigma: value}}, a table's name or a file")
    elif isinstance(schedule, (int, float)):
        values = {1.0: float(schedule)}
    else:
        table = read_table(schedule)
        side = table.resolution
        if (height, width) != (side, side):
            raise InputError(
                f"schedule {str(schedule)!r} is for {side}×{side} images, not {height}×{width}; "
                "leave it out for the default of this resolution, or give a number or a dict {sigma: value}"
            )
        values = table.column(method)
    if not values:
        raise InputError("the schedule is empty; give at least one noise level")
    for sigma, value in values.items():
        if not (math.isfinite(sigma) and sigma > 0 and math.isfinite(value) and value >= 0):
            raise InputError(f"schedule entry {{{sigma}: {value}}} is impossible: sigma > 0 and a value ≥ 0 are needed")
    return values


def default(method: str, resolution: int) -> dict[float, float]:
    """The paper's table for 32×32 (CIFAR-10) or 64×64 (FFHQ); elsewhere the nearer one, with sizes scaled.

    Scaled patch sizes are rounded to odd numbers of at least 3, and never beyond what covers the whole image.
    """
    table = read_table("cifar10" if resolution < 48 or method == "els" else "ffhq")
    column = table.column(method)
    if method in ("pspc_flex", "lukoianov") or resolution == table.resolution:
        return column
    return {t: _scaled(int(s), table.resolution, resolution, inside=method == "pspc_square") for t, s in column.items()}


def _scaled(size: int, old: int, new: int, inside: bool) -> int:
    if size == old:                                     # the whole image stays the whole image
        return new
    odd = 2 * round((size * new / old - 1) / 2) + 1
    return min(max(3, odd), new if inside else 2 * new - 1)
