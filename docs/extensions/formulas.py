"""Formulas as MathML, which browsers show by themselves: the manual asks nothing of other servers."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging


def mathml(node, as_block: bool = False) -> str:
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s", error, location=node)
        return ""


def inline(writer, node) -> None:
    writer.body.append(mathml(node))
    raise nodes.SkipNode


def display(writer, node) -> None:
    writer.body.append(f'<div class="math">{mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True}
