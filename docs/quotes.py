"""Numbers quoted in README and manual, renewed from the result files they were taken from: `python docs/quotes.py`.

A table stands between `<!-- table demo.csv -->` and `<!-- end -->`, as a Markdown table or in a ```text fence; after
the file may follow `| columns: a, b` and `| rows: x; y`. A number is followed by
`<!-- = demo.csv | row | column -->` and keeps its digits. A row goes by its first cell, or by `first @ second` where
that is not enough. The tests fail where a page does not say what the files say.
"""

from __future__ import annotations

import csv
import re
from decimal import Decimal
from pathlib import Path

from fpmc.report.table import markdown, plain

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
TABLE = re.compile(r"<!-- table ([^\n]*?) -->\n(.*?)<!-- end -->", re.DOTALL)
NUMBER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)<!-- = ([^|\n]+?) \| ([^|\n]+?) \| ([^|\n]+?) -->")
VALUE = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def renewed(text: str) -> str:
    """The page with every marked table and number as the result files have it now."""
    return NUMBER.sub(_number, TABLE.sub(_table, text))


def read(name: str) -> tuple[list[str], dict[str, list[str]]]:
    """Headers of a result file, and its rows by name."""
    with open(RESULTS / name, encoding="utf-8", newline="") as file:
        headers, *rows = csv.reader(file)
    first = [row[0] for row in rows]
    return headers, {row[0] if first.count(row[0]) == 1 else f"{row[0]} @ {row[1]}": row for row in rows}


def _table(found: re.Match[str]) -> str:
    name, *options = (part.strip() for part in found[1].split("|"))
    chosen = dict(option.split(": ", 1) for option in options)
    headers, rows = read(name)
    columns = [headers.index(column.strip()) for column in chosen.get("columns", ",".join(headers)).split(",")]
    names = [row.strip() for row in chosen["rows"].split(";")] if "rows" in chosen else list(rows)
    cells = [[rows[row][column] for column in columns] for row in names]
    fenced = "```text" in found[2]
    made = (plain if fenced else markdown)([headers[column] for column in columns], cells)
    body = f"```text\n{made}\n```" if fenced else made
    return f"<!-- table {found[1]} -->\n\n{body}\n\n<!-- end -->"


def _number(found: re.Match[str]) -> str:
    quoted, name, row, column = found.groups()
    headers, rows = read(name)
    value = VALUE.search(rows[row][headers.index(column)])
    if value is None:
        raise ValueError(f"{name} has no number at {row!r}, {column!r}")
    digits = len(quoted.partition(".")[2])
    shown = f"{Decimal(value[0].replace(',', '').replace('−', '-')):,.{digits}f}"
    return found[0].replace(quoted, shown, 1)


def main() -> None:
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
