"""Sphinx settings of the fpmc manual."""

project = "fpmc"
copyright = "2026, the fpmc authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "amsmath"]
html_theme = "furo"
html_title = "fpmc"
exclude_patterns = ["_build"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
