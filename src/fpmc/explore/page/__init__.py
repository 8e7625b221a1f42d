"""The page: plain ES modules, one for each view, found by bare names through an import map.

Bare names let the same files be served one by one, and be put into a single file as data addresses.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.resources import files


@cache
def static_files() -> dict[str, bytes]:
    """All files of the page by name, read once: what is not in here cannot be asked for."""
    folder = files(__name__)
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.endswith((".js", ".css"))}


def page_html(nonce: str, record: str | None = None) -> str:
    """index.html with its modules: addresses of the server, or with a record everything inside."""
    modules = sorted(name for name in static_files() if name.endswith(".js"))
    if record is None:
        places = {f"fpmc/{name[:-3]}": f"/static/{name}" for name in modules}
        style = '<link rel="stylesheet" href="/static/style.css">'
    else:
        places = {f"fpmc/{name[:-3]}": _inside(static_files()[name]) for name in modules}
        style = f"<style>{static_files()['style.css'].decode()}</style>"
    # "</" would end the script element; in JSON strings "<\/" is the same text.
    safe = (record or "null").replace("</", "<\\/")
    parts = {"style": style, "nonce": nonce, "imports": json.dumps({"imports": places}), "record": safe}
    text = files(__name__).joinpath("index.html").read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _inside(module: bytes) -> str:
    return "data:text/javascript;base64," + base64.b64encode(module).decode("ascii")
