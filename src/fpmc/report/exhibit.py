"""A figure, a table or both, with what they show: what an experiment makes, in every form it is wanted in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from fpmc.report.figure import save
from fpmc.report.run import RunDirectory
from fpmc.report.table import Rows, csv_text, latex, markdown


@dataclass(frozen=True, eq=False)
class Exhibit:
    """What one experiment shows."""

    name: str                                           # of its files
    title: str
    caption: str
    headers: tuple[str, ...]
    rows: Rows                                          # as printed
    records: Sequence[Mapping[str, Any]]                # the numbers behind them
    grey: tuple[int, ...] = ()                          # columns that are the paper's
    figure: Figure | None = None
    notes: tuple[str, ...] = ()                         # what a reader should know before comparing

    def write(self, run: RunDirectory) -> list[str]:
        """The table as Markdown, LaTeX and CSV, the figure as PNG, SVG and PDF; returns the names of the files."""
        run.write_text(f"{self.name}.md", markdown(self.headers, self.rows))
        run.write_text(f"{self.name}.tex", latex(self.headers, self.rows, self.grey))
        run.write_text(f"{self.name}.csv", csv_text(self.records))
        files = [f"{self.name}.{kind}" for kind in ("md", "tex", "csv")]
        return files + (save(self.figure, run, self.name) if self.figure is not None else [])
