"""Sigmoid discs, whose tails are nowhere 0, against LS at all noise levels of the schedule.

    python benchmarks/discs.py [--data fashion] [--images 12000] [--radius 4] [--softness 1] [--json out.json]

Processor time of one thread per noisy image, the two in turn, the best of a few. LS has the square of the same radius.
The error is against the float64 engine on the first images.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from fpmc import presets
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions
from fpmc.core.response import SameAsQ, pixel
from fpmc.data import load_images
from fpmc.engine import Call
from fpmc.images import ImageSet
from fpmc.process import edm_grid


def discs(images: ImageSet, radius: float, softness: float, mixed: bool) -> FPMC:
    """One around every pixel, answering for it or, mixed, for all it covers."""
    _, height, width = images.shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    away = torch.hypot((y.flatten()[:, None, None] - y).float(), (x.flatten()[:, None, None] - x).float())
    q = Precisions(torch.sigmoid((radius - away) / softness)[:, None])
    return FPMC(Collection(q, SameAsQ(q) if mixed else pixel(height, width), images)).using(threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--radius", type=float, default=4.0)
    parser.add_argument("--softness", type=float, default=1.0)
    parser.add_argument("--mixed", action="store_true", help="r = q, against PSPC-Square")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checked", type=int, default=1000)
    parser.add_argument("--sigmas", type=float, nargs="+", default=edm_grid(18).tolist())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, held_out = load_images(options.data).subset(slice(options.images)), load_images(options.data, split="test")
    size, preset = 2 * int(options.radius) + 1, presets.pspc_square if options.mixed else presets.ls
    ours, squares = (options.radius, options.softness, options.mixed), preset(images, schedule=size).using(threads=1)
    soft, few = discs(images, *ours), discs(images.subset(slice(options.checked)), *ours)
    random, found = torch.Generator().manual_seed(0), []
    for sigma in options.sigmas:
        z = held_out.scaled(slice(options.batch)) + sigma * torch.randn(options.batch, *images.shape, generator=random)
        best = {"squares": float("inf"), "discs": float("inf")}
        for _ in range(options.repeats + 1):            # the first compiles and lays out, and is never the best
            for name, denoiser in (("squares", squares), ("discs", soft)):
                began = time.process_time()
                denoiser(z, sigma)
                best[name] = min(best[name], (time.process_time() - began) / options.batch)
        (step,) = soft.at(sigma).plan(Call.of(z, sigma), soft.settings).steps
        error = (few(z, sigma) - few(z.double(), sigma)).abs().max().item()
        ratio = best["discs"] / best["squares"]
        found.append({"sigma": sigma, **best, "ratio": ratio, "kernel": step.kernel, "error": error, "why": step.why})
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in best.items())
        print(f"σ {sigma:<8.4g} {times}, {ratio:.1f} times ({step.kernel}), error {error:.1e}", flush=True)
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "sigmas")}
        options.json.write_text(json.dumps({"settings": settings, "levels": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
