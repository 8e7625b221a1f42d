"""The page as one file: questions a reader may ask, answered beforehand and written into it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fpmc.errors import InputError
from fpmc.explore import requests as ask
from fpmc.explore.pack import smaller
from fpmc.explore.page import page_html
from fpmc.explore.path import STEPS
from fpmc.explore.session import Session
from fpmc.files import atomic

MOST = 15_000_000                                       # bytes of the file
SEEDS = range(3)
LEVELS = (5, 8, 11, 13, 17)                             # at which pixels can be asked about
TOP = 8                                                 # images that are shown
PIXELS = 5                                              # along each side, evenly


def export_page(
    session: Session, path: str | os.PathLike[str], *, seeds: Sequence[int] = SEEDS, levels: Sequence[int] = LEVELS,
    most: int = MOST, say: Callable[[str], object] = lambda text: None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> int:
    """Write the page with as many answers as fit, the most telling first; returns its bytes."""
    if not seeds or any(not 0 <= level < STEPS for level in levels):
        raise InputError(f"an export needs seeds and levels from 0 to {STEPS - 1}, got {list(seeds)}, {list(levels)}")
    room = most - len(page_html("", "null").encode()) - 10_000
    record: dict[str, Any] = {}
    pictures: dict[str, Any] = {}                       # training images and where they speak, each once
    every = list(questions(session, seeds, levels))
    for kind, asked, answer in every:
        key, (slim, new) = key_of(kind, asked), _slim(smaller(answer()))
        new = {name: each for name, each in new.items() if name not in pictures}
        room -= len(key) + len(json.dumps(slim)) + len(json.dumps(new)) + 16
        if room < 0:
            say(f"the file is full after {len(record)} views; fewer seeds leave room for more pixels")
            break
        record[key] = slim
        pictures |= new
        progress(len(record), len(every))
    about = session.about() | {"seeds": list(seeds), "asked_levels": list(levels), "pixels": _pixels(session)}
    record[key_of("about", {})] = about
    text = page_html("", json.dumps({"answers": record, "pictures": pictures}))
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")
    return len(text.encode())


def questions(
    session: Session, seeds: Sequence[int], levels: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any], Callable[[], Any]]]:
    """What is recorded: paths and curves, then whole images, then pixels."""
    every = range(len(session.denoisers))
    analytic = [index for index in every if session.about()["denoisers"][index]["analytic"]]
    for seed in seeds:
        for index in every:
            way = ask.Way(denoiser=index, start=ask.Start(seed=seed))
            yield "path", plain(way), lambda way=way: [session.step(way, level) for level in range(STEPS)]
    for index in every:
        for level in range(STEPS):
            asked = ask.Level(denoiser=index, level=level, seed=seeds[0])
            yield "weights", plain(asked), lambda asked=asked: session.weights(asked)
            for seed in seeds if session.networks else ():
                asked = ask.Level(denoiser=index, level=level, seed=seed)
                yield "error", plain(asked), lambda asked=asked: session.error(asked)
    points = [None, *((y, x, y, x) for y in _pixels(session)[0] for x in _pixels(session)[1])]
    for point in points:
        for level in levels:
            for index in analytic:
                if point is not None:
                    sigma = session.about()["levels"][level]
                    asked = ask.Pixel(denoiser=index, sigma=sigma, y=point[0], x=point[1])
                    yield "pixel", plain(asked), lambda asked=asked: session.pixel(asked)
                for seed in seeds:
                    asked = ask.WhichImages(
                        denoiser=index, start=ask.Start(seed=seed), level=level, region=point, top=TOP
                    )
                    yield "shares", plain(asked), lambda asked=asked: session.shares(asked)


def plain(asked: ask.Asked) -> dict[str, Any]:
    """A question as the page writes it."""
    return asked.model_dump(mode="json")


def key_of(kind: str, asked: dict[str, Any]) -> str:
    """What a question is found by, without what a record does not tell apart: how many images, and the exact σ."""
    start = asked.get("start") or {}
    parts = [asked.get("denoiser"), start.get("seed", asked.get("seed")), asked.get("level")]
    if kind == "pixel":
        parts = [asked["denoiser"], f"{asked['sigma']:.4f}", asked["y"], asked["x"]]
    if kind == "weights":
        parts = [asked["denoiser"], asked["level"]]
    if kind == "shares":
        parts += asked["region"] or ["all"]
    return " ".join(map(str, [kind, *(part for part in parts if part is not None)]))


def _pixels(session: Session) -> tuple[list[int], list[int]]:
    """Rows and columns of the pixels that can be asked about."""
    _, height, width = session.shape
    return tuple(sorted({int((k + 0.5) * side / PIXELS) for k in range(PIXELS)}) for side in (height, width))  # pyright: ignore


def _slim(answer: Any) -> tuple[Any, dict[str, Any]]:
    """An answer without what the page does not show, and its pictures by name, so that each is there once."""
    if not isinstance(answer, dict) or "images" not in answer:
        return answer, {}
    rows, pictures = [], {}
    for row in (row for row in answer["images"] if row["speaks"]):
        names = {part: _name(row[part]) for part in ("pixels", "map")}
        pictures |= {name: row[part] for part, name in names.items()}
        rows.append({key: value for key, value in row.items() if key != "answer"} | names)
    return {**answer, "images": rows, "answer": None}, pictures


def _name(picture: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(picture).encode(), digest_size=6).hexdigest()
