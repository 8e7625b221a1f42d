"""Put networks of training runs into the package, where they are better than what is there.

    python scripts/ship_network.py runs/fashion-ddpmpp runs/cifar10-ddpmpp      # run directories named like the network
    python scripts/ship_network.py                                              # write the cards anew from their data

A run may go on meanwhile: what counts is its last checkpoint. The moving average, in float16, is compared with the
network that ships on the same held-out images and noise; it replaces it if the mean of ln(error ratio) over the noise
levels from 0.05 to 5 is below 0. Then weights, card data (NAME.json), card, learning curve and samples are written.
Maps made by `fpmc maps` are taken along from --maps, one folder per run, if given.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import model_card
import torch

from fpmc.data import load_images
from fpmc.files import atomic
from fpmc.images import ImageSet
from fpmc.metrics import compare
from fpmc.networks import load_network, save_network
from fpmc.networks.shipped import WEIGHTS
from fpmc.networks.targets import PosteriorMean
from fpmc.networks.training import VALIDATION_SIGMAS, validate
from fpmc.presets import wiener
from fpmc.report.grid import image_grid
from fpmc.report.run import read_config
from fpmc.sampling import EVALUATION_FROM, Samples, sample

MOST_BYTES = 8_000_000
MACHINERY = ("outdir", "device", "threads", "minutes", "save_minutes", "look_minutes", "validation", "images")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run directories of fpmc train")
    parser.add_argument("--seeds", type=int, default=512, help="samples in the comparison of networks, from 10000 up")
    parser.add_argument("--held-out", type=int, default=1000, help="test images in the errors by noise level")
    parser.add_argument("--maps", nargs="*", type=Path, default=[], help="run directories of fpmc maps, in that order")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the networks that ship")
    parser.add_argument("--dry-run", action="store_true", help="say what would be shipped, and write nothing")
    options = parser.parse_args(arguments)

    touched = {settings_of(run)["data"] for run in options.runs if consider(run, options)}
    for run, folder in zip(options.runs, [] if options.dry_run else options.maps):
        (options.weights / "maps").mkdir(exist_ok=True)
        shutil.copy(folder / "maps.safetensors", options.weights / "maps" / f"{run.name}.safetensors")
    if options.dry_run:
        return
    for path in sorted(options.weights.glob("*.json")):
        card = json.loads(path.read_text(encoding="utf-8"))
        if card["data"] in touched:
            write_samples(card, options)
        if card["data"] in touched or not options.runs:
            write_card(card, options.weights)


def consider(run: Path, options: argparse.Namespace) -> bool:
    """Compare the last checkpoint of a run with what ships, in one line; take it if it is better."""
    name, settings = run.name, settings_of(run)
    held_out = held_out_of(settings, options.held_out)
    state = torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)
    before = state.get("before", _seen_by(settings["init"], options.weights))
    seen = before + state["step"] * settings["batch"]
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / f"{name}.safetensors"
        save_network(load_network(run / "checkpoint.pt"), part, dtype=torch.float16)  # pyright: ignore
        net: Any = load_network(part)  # from here on, what users get
        if part.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{name} has {part.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
        errors, target = validate(net, held_out), options.weights / part.name
        score = judge(errors, validate(load_network(target), held_out)) if target.exists() else -math.inf
        verdict = "kept what ships" if score >= 0 else "would be shipped" if options.dry_run else "shipped"
        change = "nothing ships yet" if score == -math.inf else f"{100 * math.expm1(score):+.2f} % error (σ 0.05 … 5)"
        print(f"{name}: {seen:,} images seen, {change}: {verdict}", flush=True)
        if score < 0 and not options.dry_run:
            write_json(new_card(run, net, settings, state, before, errors, options), options.weights)
            with atomic(target) as copy:
                shutil.copy(part, copy)
    return score < 0


def settings_of(run: Path) -> dict[str, Any]:
    """What `fpmc train` was told."""
    return read_config(run).settings


def held_out_of(settings: dict[str, Any], count: int) -> ImageSet:
    """The first images that a run validates on."""
    own = settings["held_out"]
    return (load_images(own) if own else load_images(settings["data"], split="test")).subset(slice(count))


def judge(errors: dict[float, float], shipped: dict[float, float]) -> float:
    """The mean of ln(error / error of what ships) over the noise levels where networks differ; below 0 is better."""
    ratios = [math.log(errors[sigma] / shipped[sigma]) for sigma in model_card.JUDGED]
    return sum(ratios) / len(ratios)


def new_card(
    run: Path,
    net: Any,
    settings: dict[str, Any],
    state: dict[str, Any],
    before: int,
    errors: dict[float, float],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The card data of a run's last checkpoint; sittings and learning curve go on from the card that is there."""
    path = options.weights / f"{run.name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    images = load_images(settings["data"])
    seen = before + state["step"] * settings["batch"]
    flags = " ".join(f"--{key} {_flag(value)}" for key, value in settings.items() if key not in MACHINERY and value)
    sitting = {"from": before, "to": seen, "hours": state["seconds"] / 3600, "how": f"`fpmc train {flags}`"}
    sittings = [*(each for each in old.get("sittings", []) if each["to"] <= before), sitting]
    return {
        "name": run.name,
        **{key: settings[key] for key in ("data", "arch", "p_mean", "p_std")},
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "shape": list(net.shape),
        "training_images": len(images),
        "images_seen": seen,
        "hours": sum(each["hours"] for each in sittings),
        "sittings": sittings,
        "validation": _plain(errors),
        **analytic(old, images, settings, options.held_out),
        "curve": curve(old, run, images, settings, before, seen, net),
    }


def analytic(old: dict[str, Any], images: ImageSet, settings: dict[str, Any], count: int) -> dict[str, Any]:
    """Errors of the linear and of the optimal denoiser, which no training changes."""
    if old.get("held_out") == count:
        return {key: old[key] for key in ("held_out", "wiener", "optimal")}
    held_out = held_out_of(settings, count)
    linear, best = (validate(denoiser, held_out) for denoiser in (wiener(images), PosteriorMean(images)))
    return {"held_out": count, "wiener": _plain(linear), "optimal": _plain(best)}


def curve(
    old: dict[str, Any], run: Path, images: ImageSet, settings: dict[str, Any], before: int, seen: int, net: Any
) -> dict[str, Any]:
    """Errors by images seen, on the images that `fpmc train` validates on: the card's, this run's, the weights' own."""
    known = old.get("curve")
    if known is None:
        linear = validate(wiener(images), held_out_of(settings, settings["validation"]))
        known = {"held_out": settings["validation"], "wiener": _plain(linear), "points": []}
    points = [point for point in known["points"] if point["images_seen"] <= before]
    looks = run / "metrics.jsonl"                       # there after the first look
    for row in looks.read_text(encoding="utf-8").splitlines() if looks.exists() else ():
        event = json.loads(row)
        at = event.get("seen", before + event["images"])
        if before < at <= seen and event.get("held_out", known["held_out"]) == known["held_out"]:
            points.append({"images_seen": at, "validation": event["validation"]})
    if not points or points[-1]["images_seen"] < seen:  # the checkpoint is younger than the last look at it
        last = validate(net, held_out_of(settings, known["held_out"]))
        points.append({"images_seen": seen, "validation": _plain(last)})
    return {**known, "points": points}


def write_samples(card: dict[str, Any], options: argparse.Namespace) -> None:
    """A picture of samples, and how they agree with those of the other network of the same images, into the data."""
    name, arch = card["name"], card["arch"]
    other = name.replace(arch, "ncsnpp" if arch == "ddpmpp" else "ddpmpp")
    drawn = _drawn(options.weights / f"{name}.safetensors", options.seeds)
    first = drawn.images[:32]
    start = EVALUATION_FROM
    grid = {f"seeds {start + i}–{start + i + 7}": first[i : i + 8] for i in range(0, len(first), 8)}
    image_grid(grid, title=name).save(options.weights / f"{name}.png", optimize=True)
    if other != name and (options.weights / f"{other}.safetensors").exists():
        theirs = _drawn(options.weights / f"{other}.safetensors", options.seeds)
        pair = (drawn, theirs) if arch == "ddpmpp" else (theirs, drawn)  # both cards tell the same number
        found = compare(*pair).summary()
        kept = {key: found[key] for key in ("r2", "r2_se", "r2_median", "mse", "mse_se")}
        card["agreement"] = {"with": other, "from": start, "seeds": options.seeds, **kept}
    write_json(card, options.weights)


@lru_cache
def _drawn(path: Path, count: int) -> Samples:
    return sample(load_network(path), seeds=range(EVALUATION_FROM, EVALUATION_FROM + count))


def write_card(card: dict[str, Any], folder: Path) -> None:
    drawn = model_card.draw_curve(card, folder / f"{card['name']}-curve.png")
    (folder / f"{card['name']}.md").write_text(model_card.text(card, drawn), encoding="utf-8")


def write_json(card: dict[str, Any], folder: Path) -> None:
    with atomic(folder / f"{card['name']}.json") as part:
        part.write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _seen_by(init: str | None, weights: Path) -> int:
    path = weights / f"{init}.json"
    return json.loads(path.read_text(encoding="utf-8"))["images_seen"] if init and path.exists() else 0


def _plain(errors: dict[float, float]) -> dict[str, float]:
    return {str(sigma): errors[sigma] for sigma in VALIDATION_SIGMAS}


def _flag(value: Any) -> str:
    """As it was given, but of a path only what names the file, wherever it was."""
    if isinstance(value, list):
        return " ".join(map(_flag, value))
    return "" if value is True else Path(value).name if isinstance(value, str) else str(value)


if __name__ == "__main__":
    main()
