"""One HTML page per run that needs nothing else: figures are inside, no script, no request to anywhere."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpmc.report.exhibit import Exhibit
from fpmc.report.table import html_table

PER_INCH = 4                                            # rem a figure is wide at least; a phone scrolls it
STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 66rem; background: #fff; color: #1a1a1a;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 3rem 0 .4rem; padding-top: .8rem; border-top: 1px solid #ddd; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.lead { color: #555; }
nav ul { padding: 0; margin: 1rem 0; list-style: none; display: flex; flex-wrap: wrap; gap: .3rem .9rem; }
a { color: #00548a; }
.wide { overflow-x: auto; margin: .8rem 0; -webkit-overflow-scrolling: touch; }
.wide img { display: block; width: 100%; height: auto; }
@media (max-width: 36rem) { body { padding-top: 1rem; }
  th:first-child, td:first-child { max-width: 8.5rem; padding-right: .7rem; } }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 1rem .3rem 0; text-align: right; vertical-align: top; white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 7rem; position: sticky; left: 0;
  background: #fff; }
thead th { border-bottom: 1.5px solid #1a1a1a; font-weight: 600; }
tbody tr + tr td { border-top: 1px solid #eee; }
.theirs { color: #767676; font-weight: 400; }
th.text, td.text { text-align: left; white-space: normal; }
.note, footer, .files { font-size: .875rem; color: #555; }
pre { background: #f5f5f5; padding: .7rem .9rem; overflow-x: auto; font-size: .8125rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
@media print {
  body { max-width: none; font-size: 10pt; padding: 0; } nav, .files { display: none; }
  h2 { break-after: avoid; } .wide, tr { break-inside: avoid; overflow: visible; }
  .wide img { min-width: 0 !important; }
  table { font-size: 8pt; } th, td { padding-right: .5rem; }
}
"""


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
    links = "".join(f'<li><a href="#{e.name}">{html.escape(e.title)}</a></li>' for e in exhibits)
    sections = "\n".join(_section(exhibit, folder) for exhibit in exhibits)
    ends = "\n".join(f"<h2>{html.escape(name)}</h2>\n{_facts(values)}" for name, values in facts.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{html.escape(title)}</h1>
<p class="lead">{html.escape(lead)} Grey numbers are the paper's.</p></header>
<nav><ul>{links}</ul></nav>
<main>
{sections}
</main>
<footer>
<h2>The same again</h2>
<pre>{html.escape(command)}</pre>
{ends}
</footer>
</body>
</html>"""


def _section(exhibit: Exhibit, folder: Path) -> str:
    parts = [f'<section id="{exhibit.name}">', f"<h2>{html.escape(exhibit.title)}</h2>"]
    parts.append(f"<p>{html.escape(exhibit.caption)}</p>")
    files = {"Markdown": "md", "LaTeX": "tex", "CSV": "csv"}
    if exhibit.figure is not None:
        data = base64.b64encode((folder / f"{exhibit.name}.png").read_bytes()).decode()
        alt = html.escape(exhibit.title, quote=True)
        least = f"min-width:{PER_INCH * exhibit.figure.get_figwidth():.0f}rem"
        parts.append(f'<div class="wide"><img style="{least}" alt="{alt}" src="data:image/png;base64,{data}"></div>')
        files |= {"PNG": "png", "SVG": "svg", "PDF": "pdf"}
    parts.append(f'<div class="wide">{html_table(exhibit.headers, exhibit.rows, exhibit.grey)}</div>')
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in exhibit.notes]
    links = " ".join(f'<a href="{exhibit.name}.{kind}">{title}</a>' for title, kind in files.items())
    parts.append(f'<p class="files">{links}</p></section>')
    return "\n".join(parts)


def _facts(values: Mapping[str, str]) -> str:
    cells = [(html.escape(name), html.escape(value)) for name, value in values.items()]
    rows = "".join(f'<tr><td>{name}</td><td class="text">{value}</td></tr>' for name, value in cells)
    return f'<div class="wide"><table><tbody>{rows}</tbody></table></div>'
