"""Sphinx settings of the fpmc manual."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

project = "fpmc"
copyright = "2026, the fpmc authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "amsmath"]
html_theme = "furo"
html_title = "fpmc"
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"


def mathml(node, as_block: bool = False) -> str:
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except ValueError as error:
        logging.getLogger(__name__).warning("%s", error, location=node)
        return ""


def inline_math(writer, node) -> None:
    writer.body.append(mathml(node))
    raise nodes.SkipNode


def display_math(writer, node) -> None:
    writer.body.append(f'<div class="math" style="overflow-x: auto">{mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app) -> None:
    """Formulas as MathML, which browsers show by themselves: the manual asks nothing of other servers."""
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
