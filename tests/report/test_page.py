"""Exhibits and the page: every form, nothing from outside, nothing that could run."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import COLOURS, DASHES, MARKERS, drawing, line, name_levels
from fpmc.report.page import page
from fpmc.report.run import RunDirectory


class Outline(HTMLParser):
    """The tags of a page, and whether they are all closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def exhibit() -> Exhibit:
    with drawing(3, 2) as figure:
        axes = figure.add_subplot()
        for index in range(2):
            axes.plot([0.1, 1, 10], [1, 2 + index, 3], label=f"line {index}", **line(index))
        name_levels(axes, [0.1, 1, 10])
    return Exhibit(
        "fig-x", "Figure <x>", "A & B.", ("Denoiser", "r²", "paper"), [("LS & co", "0.581 ± 0.01", "0.58")],
        [{"method": "ls", "r2": 0.5812345678901234}], grey=(2,), figure=figure, notes=("<script>alert(1)</script>",),
    )


def test_an_exhibit_in_every_form(exhibit: Exhibit, tmp_path: Path):
    run = RunDirectory(tmp_path / "run", {}, command="reproduce")
    files = exhibit.write(run)
    assert sorted(files) == [f"fig-x.{kind}" for kind in ("csv", "md", "pdf", "png", "svg", "tex")]
    (row,) = csv.DictReader(io.StringIO((run.path / "fig-x.csv").read_text()))
    assert float(row["r2"]) == 0.5812345678901234       # not as printed
    assert Image.open(run.path / "fig-x.png").width == 600
    assert (run.path / "fig-x.pdf").read_bytes().startswith(b"%PDF")
    first = {file: (run.path / file).read_bytes() for file in files}
    exhibit.write(run)
    assert {file: (run.path / file).read_bytes() for file in files} == first    # the same again


def test_the_page_stands_alone(exhibit: Exhibit, tmp_path: Path):
    run = RunDirectory(tmp_path / "run", {}, command="reproduce")
    exhibit.write(run)
    text = page(
        "Title", "Lead.", [exhibit], folder=run.path, command="fpmc reproduce all --data 'a b'",
        facts={"Versions": {"torch": "2.<13>"}},
    )
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    tags = [tag for tag, _ in outline.seen]
    assert not {"script", "link", "iframe", "object"} & set(tags)
    sources = [attrs["src"] for tag, attrs in outline.seen if tag == "img" and attrs["alt"]]
    assert len(sources) == 1
    assert str(sources[0]).startswith("data:image/png;base64,")
    assert not re.search(r"https?:|@import|url\(", text)
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in outline.seen
    assert '<td class="theirs">0.58</td>' in text
    assert "&lt;script&gt;" in text
    assert "Figure &lt;x&gt;" in text
    assert "--data &#39;a b&#39;" in text
    assert "@media print" in text


def test_tables_mark_words_and_what_is_not_ours(tmp_path: Path):
    exhibit = Exhibit("t", "T", "", ("a", "b", "c"), [("x", "1", "<2"), ("y", "2", "3")], [], grey=(2,))
    text = page("Title", "", [exhibit], folder=tmp_path, command="", facts={})
    assert '<tr><td class="text">x</td><td>1</td><td class="theirs">&lt;2</td></tr>' in text
    assert '<tr><th class="text">a</th><th>b</th><th class="theirs">c</th></tr>' in text


def test_lines_differ_without_their_colours():
    looks = [line(index) for index in range(len(MARKERS))]
    assert len({look["marker"] for look in looks}) == len(looks) > len(COLOURS) == len(DASHES)
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == len(looks)
