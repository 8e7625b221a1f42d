"""One HTML page per run that needs nothing else: figures are inside, no script, no request to anywhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fpmc.report.exhibit import Exhibit

PER_INCH = 4                                            # rem a figure is wide at least; a phone scrolls it
TABLE = (("Markdown", "md"), ("LaTeX", "tex"), ("CSV", "csv"))
FIGURE = (("PNG", "png"), ("SVG", "svg"), ("PDF", "pdf"))


def page(
    title: str,
    lead: str,
    exhibits: Sequence[Exhibit],
    *,
    folder: Path,                                       # where the PNGs of the figures are
    command: str,                                       # that makes the same again
    facts: Mapping[str, Mapping[str, str]],             # tables of two columns for the end: settings, versions, time
) -> str:
    """The page as one string."""
    pictures = {
        exhibit.name: base64.b64encode((folder / f"{exhibit.name}.png").read_bytes()).decode()
        for exhibit in exhibits if exhibit.figure is not None
    }
    return _template().render(
        title=title, lead=lead, exhibits=exhibits, command=command, facts=facts, pictures=pictures,
        per_inch=PER_INCH, files=TABLE, pictured=FIGURE,
    )


def _template():
    """Everything that is put in is escaped, and what is missing is an error."""
    settings = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    settings.tests["is_word"] = lambda cell: str(cell)[:1].isalpha()
    return settings.get_template("page.html")
