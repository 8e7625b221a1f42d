"""Put the network of a training run into the package: float16 weights, and a model card with what it reached.

    python scripts/ship_network.py runs/fashion-ddpmpp runs/fashion-ncsnpp --seeds 64

Two runs on the same data are compared by samples from shared noise. Maps made by `fpmc maps` are taken along from
--maps, one folder per network, if given.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch

from fpmc.data import load_images
from fpmc.images import ImageSet
from fpmc.metrics import compare
from fpmc.networks import load_network, save_network
from fpmc.networks.shipped import MAPS, WEIGHTS
from fpmc.networks.training import VALIDATION_SIGMAS, validate
from fpmc.presets import optimal, wiener
from fpmc.report.grid import image_grid
from fpmc.report.table import markdown, plus_minus
from fpmc.sampling import sample

TITLES = {"ddpmpp": "DDPM++", "ncsnpp": "NCSN++"}
MOST_BYTES = 8_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories of fpmc train, named like the network")
    parser.add_argument("--seeds", type=int, default=64, help="samples in the comparison of two networks")
    parser.add_argument("--held-out", type=int, default=1000, help="test images in the errors by noise level")
    parser.add_argument("--maps", nargs="*", type=Path, default=[], help="run directories of fpmc maps, in that order")
    options = parser.parse_args()

    nets: dict[str, Any] = {}
    for run in options.runs:
        target = WEIGHTS / f"{run.name}.safetensors"
        save_network(load_network(run / "checkpoint.pt"), target, dtype=torch.float16)  # pyright: ignore
        if target.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{target} has {target.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
        nets[run.name] = load_network(target)  # from here on, what users get
    for run, folder in zip(options.runs, options.maps):
        MAPS.mkdir(exist_ok=True)
        shutil.copy(folder / "maps.safetensors", MAPS / f"{run.name}.safetensors")

    data = json.loads((options.runs[0] / "config.json").read_text())["settings"]["data"]
    images, held_out = load_images(data), load_images(data, split="test").subset(slice(options.held_out))
    analytic = {"Wiener": validate(wiener(images), held_out), "optimal": validate(optimal(images), held_out)}
    samples = {name: sample(net, seeds=range(options.seeds)).images for name, net in nets.items()}
    agreement = ""
    if len(samples) == 2:
        (one, a), (other, b) = samples.items()
        found = compare(a, b)
        agreement = (
            f"Samples of `{one}` and `{other}` from the same {options.seeds} seeds agree with r² "
            f"{plus_minus(found.r2, found.r2_se)} (median {found.r2_per_image.median().item():.3f}), "
            f"MSE {plus_minus(found.mse, found.mse_se, 4)}."
        )
    for run in options.runs:
        drawn = samples[run.name][:32]
        grid = {f"seeds {i}–{i + 7}": drawn[i : i + 8] for i in range(0, len(drawn), 8)}
        image_grid(grid, title=run.name).save(WEIGHTS / f"{run.name}.png", optimize=True)
        history = run / "note.txt"  # what the settings do not tell, e.g. that they changed on the way
        note = history.read_text(encoding="utf-8").strip() if history.is_file() else ""
        text = card(run, nets[run.name], images, validate(nets[run.name], held_out), analytic, agreement, note)
        (WEIGHTS / f"{run.name}.md").write_text(text, encoding="utf-8")
        print(text)


def card(
    run: Path,
    net: Any,
    images: ImageSet,
    errors: dict[float, float],
    analytic: dict[str, dict[float, float]],
    agreement: str,
    note: str,
) -> str:
    """The model card."""
    settings = json.loads((run / "config.json").read_text())["settings"]
    state = torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)
    machinery = ("outdir", "device", "threads", "minutes", "save_minutes", "look_minutes", "validation")
    seen, hours = state["step"] * settings["batch"], state["seconds"] / 3600
    settings["images"] = seen
    flags = " ".join(f"--{key} {_flag(value)}" for key, value in settings.items() if key not in machinery and value)
    columns = {"network": errors, **analytic}
    rows = [[f"{sigma:g}", *(f"{each[sigma]:.4f}" for each in columns.values())] for sigma in VALIDATION_SIGMAS]
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return f"""# {run.name}

{TITLES[settings["arch"]]} in EDM's preconditioning, {parameters:,} parameters, for images of
{"×".join(map(str, images.shape))}, trained on the {len(images):,} images of `{settings["data"]}` without augmentation.

    fpmc train {flags} --outdir {run.name}

{seen:,} images seen ({seen / len(images):.0f} epochs) in {hours:.1f} hours of processor time. The weights are the
moving average, kept in float16. Noise levels in training are ln σ ~ N({settings["p_mean"]}, {settings["p_std"]}²);
EDM's are N(−1.2, 1.2²). {note}

{agreement}

Mean squared error on held-out test images by noise level, beside those of the best linear denoiser (Wiener) and of the
optimal denoiser of the training images:

{markdown(["σ", *columns], rows)}

![samples]({run.name}.png)
"""


def _flag(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is True else str(value)


if __name__ == "__main__":
    main()
