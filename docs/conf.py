"""Sphinx settings of the fpmc manual: `make docs`. What the build makes by itself is in `extensions/`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fpmc  # noqa: E402

project = "fpmc"
copyright = "2026, the fpmc authors"
version = release = fpmc.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",              # the source of every documented name, within the manual
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "extensions.formulas",
    "extensions.commands",
    "extensions.parameters",
    "extensions.names",
    "extensions.pictures",
    "extensions.notebooks",
]
exclude_patterns = ["_build", "**/sg_execution_times.rst", "sg_execution_times.rst"]
nitpicky = True
nitpick_ignore_regex = [                # what other libraries name, and type aliases; their manuals are not asked
    (r"py:class", r"(?!fpmc\.).*"),
    (r"py:class", r"fpmc\.(engine|augmentation\.kinds|learn\.calibrate\.Score|networks\.precond)\b.*"),
    (r"py:class", r"fpmc\.(core\.sources\.Chunk|methods\.schedules\.Table|sampling\.Step)"),
]
suppress_warnings = ["config.cache"]    # the gallery's settings hold functions

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "fpmc"
html_static_path = ["static"]
html_css_files = ["manual.css"]
html_extra_path = [
    "figures/made/explorer.html",       # extensions.pictures makes it
    "figures/explorer-cifar10.html",    # make_story.py made it
]
html_math_renderer = "mathml"
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
default_role = "literal"                # code in docstrings; extensions.names makes links of what it knows

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "extensions.pictures.order",
    "image_scrapers": ("extensions.pictures.collect", "matplotlib"),
    "capture_repr": (),
    "first_notebook_cell": "%pip install --quiet fpmc",
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "abort_on_example_error": True,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "plot_gallery": "True",
}
