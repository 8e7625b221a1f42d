"""Pictures of the gallery and the method pages: made when the manual is built, kept until their script changes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from PIL import Image
from sphinx.util import logging
from sphinx_gallery.scrapers import figure_rst

DOCS = Path(__file__).parents[1]
ORDER = (
    "memorisation", "seven_choices", "what_q_sees", "soft_masks", "who_made_this_pixel", "knock_out",
    "augmentation", "multi_scale", "your_photo", "plug_in_a_network", "your_own_data", "many_machines",
)  # fmt: skip


def order(file: str) -> int:
    """The place of an example in the gallery."""
    return ORDER.index(Path(file).stem)


def collect(block, block_vars: dict, gallery_conf: dict) -> str:
    """A picture that ends a block of an example is shown; the first of an example stands at the head of its page."""
    picture = block_vars["example_globals"].get("___")       # the value of the last expression
    if not isinstance(picture, Image.Image) or picture.info.get("shown"):
        return ""
    picture.info["shown"] = True
    path = next(block_vars["image_path_iterator"])
    picture.save(path, optimize=True)
    first = path.endswith("_001.png")
    return "" if first else figure_rst([path], gallery_conf["src_dir"])


def picture_first(app, docname: str, source: list[str]) -> None:
    """The first picture of an example goes between its title and its text."""
    folder, _, name = docname.partition("/")
    if folder != "gallery" or name not in ORDER:
        return
    underline = source[0].index("\n===") + 1
    end = source[0].index("\n", underline) + 1
    shown = f"/gallery/images/sphx_glr_{name}_001.png"
    image = f"\n.. image:: {shown}\n   :class: first-picture\n   :alt: what the example shows\n\n"
    source[0] = source[0][:end] + image + source[0][end:]


def make(app, config) -> None:
    """Run make_figures.py, unless what it made last is still there and the script is the same."""
    script, folder = DOCS / "make_figures.py", DOCS / "figures" / "made"
    mark, digest = folder / ".made-by", hashlib.sha256(script.read_bytes()).hexdigest()
    if mark.is_file() and mark.read_text() == digest:
        return
    logging.getLogger(__name__).info("making the pictures of the methods ...")
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    mark.write_text(digest)


def setup(app) -> dict[str, bool]:
    app.connect("config-inited", make, priority=100)      # before its files are looked for
    app.connect("source-read", picture_first)
    return {"parallel_read_safe": True}
