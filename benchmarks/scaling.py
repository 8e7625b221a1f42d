"""Cost grows linearly with the images and with the batch, and not at all with the patch size: a plot and its numbers.

    python benchmarks/scaling.py [--outdir runs/scaling]

Run it alone; CIFAR-10, LS.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from matplotlib.figure import Figure
from timing import seconds

from fpmc import presets
from fpmc.data import load_images
from fpmc.images import ImageSet


def cost(images: ImageSet, z: torch.Tensor, size: int, sigma: float = 1.09) -> float:
    """Seconds of one call of LS."""
    denoiser = presets.ls(images, schedule=size)
    return seconds(lambda: denoiser(z, sigma))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outdir", type=Path, default=Path("runs/scaling"))
    options = parser.parse_args()
    images, held_out = load_images("cifar10"), load_images("cifar10", split="test")
    noise = torch.randn(32, *images.shape, generator=torch.Generator().manual_seed(0))
    z = held_out.scaled(slice(32)) + 1.09 * noise
    found = {
        "images": {n: cost(images.subset(slice(n)), z[:8], 7) for n in (3125, 6250, 12500, 25000, 50000)},
        "batch": {b: cost(images, z[:b], 7) for b in (1, 2, 4, 8, 16, 32)},
        "patch size": {s: cost(images, z[:8], s) for s in (3, 5, 7, 11, 15, 21, 25, 31)},
    }
    options.outdir.mkdir(parents=True, exist_ok=True)
    (options.outdir / "scaling.json").write_text(json.dumps(found, indent=1))
    drawing = Figure(figsize=(9, 3), layout="constrained")
    for place, (name, points) in enumerate(found.items(), start=1):
        axes = drawing.add_subplot(1, 3, place)
        axes.plot(list(points), list(points.values()), "o-", color="black")
        axes.set(xlabel=name, ylabel="seconds per call" if place == 1 else "", ylim=(0, None))
        axes.grid(alpha=0.3)
        print(name, {key: round(value, 3) for key, value in points.items()})
    drawing.savefig(options.outdir / "scaling.png", dpi=150)
    print(options.outdir / "scaling.png")


if __name__ == "__main__":
    main()
