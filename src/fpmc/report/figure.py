"""Figures that are read in grey and by colour-blind people: Okabe–Ito's colours, a marker and a dash for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fpmc.report.run import RunDirectory

BLACK, BLUE, ORANGE, GREEN = "#000000", "#0072B2", "#D55E00", "#009E73"
COLOURS = (BLACK, BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^vP*X<>ph"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
FEW = 8                                                 # ticks that can be told apart in a small panel
FORMATS = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}     # the same figure, the same file


def line(index: int) -> dict[str, Any]:
    """Keywords of `plot` for the line of this number."""
    again, i = divmod(index, len(COLOURS))
    marker, dash = MARKERS[index % len(MARKERS)], DASHES[(i + 3 * again) % len(DASHES)]
    return {"color": COLOURS[i], "marker": marker, "linestyle": dash, "markersize": 4, "linewidth": 1.4}


def name_levels(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with the values themselves as ticks where they are few, or powers of ten."""
    axes.set_xscale("log")
    if len(values) <= FEW:
        axes.set_xticks(values, [f"{value:.0f}" if value >= 10 else f"{value:.2g}" for value in values])
    axes.xaxis.set_minor_formatter(NullFormatter())


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, with the settings that all of ours share."""
    with rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                     "grid.color": "0.9", "legend.frameon": False}):
        yield Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, run: RunDirectory, name: str) -> list[str]:
    """Write a figure as PNG, SVG and PDF into a run; returns the names of the files."""
    names = [f"{name}.{kind}" for kind in FORMATS]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")                    # found once, it is the same for all three
    with rc_context({"svg.hashsalt": "fpmc", "svg.fonttype": "path", "pdf.fonttype": 42}):
        for file, (kind, metadata) in zip(names, FORMATS.items()):
            with run.atomic(file) as part:
                figure.savefig(part, format=kind, dpi=200, metadata=metadata)
    return names
