"""Tables as plain text, Markdown, LaTeX and CSV. Columns in `grey` are somebody else's numbers beside ours."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Rows = Sequence[Sequence[str]]
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "$": r"\$", "{": r"\{", "}": r"\}",
    "±": r"$\pm$", "²": "$^2$", "×": r"$\times$", "−": "$-$", "σ": r"$\sigma$", "τ": r"$\tau$", "μ": r"$\mu$",
    "Σ": r"$\Sigma$", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "<": "$<$", ">": "$>$", "′": "$'$",
    "∪": r"$\cup$", "…": r"\dots{}", "^": r"\^{}", "~": r"\~{}",
}


def plain(headers: Sequence[str], rows: Rows) -> str:
    """A table for the terminal: first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return "\n".join([line(headers), "  ".join("─" * width for width in widths), *map(line, rows)])


def markdown(headers: Sequence[str], rows: Rows) -> str:
    """The same table for a README."""
    body = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in body)


def latex(headers: Sequence[str], rows: Rows, grey: Collection[int] = ()) -> str:
    """The same table for a paper, with booktabs and xcolor."""

    def line(cells: Sequence[str]) -> str:
        texts = ["".join(LATEX.get(letter, letter) for letter in cell) for cell in cells]
        coloured = [rf"\textcolor{{gray}}{{{text}}}" if i in grey else text for i, text in enumerate(texts)]
        return " & ".join(coloured) + r" \\"

    start = rf"\begin{{tabular}}{{l{'r' * (len(headers) - 1)}}}"
    body = [start, r"\toprule", line(headers), r"\midrule", *map(line, rows), r"\bottomrule", r"\end{tabular}"]
    return "\n".join(body)


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """The numbers behind a table, one record a line, in full precision."""
    names = list(dict.fromkeys(name for record in records for name in record))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue().rstrip("\n")


def plus_minus(mean: float, se: float, digits: int = 3) -> str:
    """mean ± standard error, or the mean alone where one image has no standard error; never −0."""
    shown = f"{round(mean, digits) + 0.0:.{digits}f}"
    return shown if math.isnan(se) else f"{shown} ± {se:.{digits}f}"


def clock(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
