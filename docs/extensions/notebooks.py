"""Notebooks of the gallery are read outside of the manual: what links to its pages becomes plain words there."""

from __future__ import annotations

import re

from sphinx_gallery import notebook

LINK = re.compile(r":doc:`(?:([^`<]+?)\s*<[^`>]*>|([^`<]+))`")
as_markdown = notebook.rst2md


def readable(text: str, *args, **settings) -> str:
    made = LINK.sub(lambda link: f"*{link[1] or link[2].rpartition('/')[2].replace('_', ' ')}*", text)
    return as_markdown(made, *args, **settings).replace("``", "`")


def setup(app) -> dict[str, bool]:
    notebook.rst2md = readable
    return {"parallel_read_safe": True}
