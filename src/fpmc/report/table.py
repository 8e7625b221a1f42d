"""Tables as plain text and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence


def plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the terminal: first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows)]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths)]
        return "  ".join([cells[0].ljust(widths[0]), *padded[1:]]).rstrip()

    return "\n".join([line(headers), "  ".join("─" * width for width in widths), *map(line, rows)])


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table for a README."""
    body = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in body)


def plus_minus(mean: float, se: float, digits: int = 3) -> str:
    """mean ± standard error, or the mean alone where one image has no standard error."""
    return f"{mean:.{digits}f}" if math.isnan(se) else f"{mean:.{digits}f} ± {se:.{digits}f}"
