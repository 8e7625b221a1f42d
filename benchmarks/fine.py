"""What helps a multi-scale collection where there is little noise: Lukoianov's masks, temperatures on small squares.

    python benchmarks/fine.py [--data fashion] [--count 64] [--sigmas 0.585 0.296 0.14 0.06 0.023]

Weights are fitted to DDPM++ on seven eighths of the noisy test images and judged on the rest, in turn, by the distance
to DDPM++ and to NCSN++. The floor is the distance between the two.
"""

from __future__ import annotations

import argparse

import torch
from multiscale_trials import BATCH, judge

from fpmc import Source, load_network, presets
from fpmc.data import load_images
from fpmc.learn.calibrate import forward_points
from fpmc.methods.multiscale import FINE, FINE_MASKS

SIZES = (3, 5, 7)
TEMPERATURES = (1.25, 1.5, 2.0)
TRIALS = {"without": ("base",), "masks": ("base", "mask"), "temperatures": ("base", "square"),
          "both": ("base", "mask", "square")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--sigmas", type=float, nargs="+", default=(0.585, 0.296, 0.14, 0.06, 0.023))
    options = parser.parse_args()
    source, held_out = Source(load_images(options.data)), load_images(options.data, split="test")
    network, reference = (load_network(f"{options.data}-{arch}") for arch in ("ddpmpp", "ncsnpp"))
    whole = presets.multiscale(source)
    squares = presets.multiscale(source, sizes=SIZES, stride=1, around=(), gaussian=False, temperatures=())
    masks = [presets.lukoianov(source, tau=tau) for tau in FINE_MASKS]
    for sigma in options.sigmas:
        tables, names = [], []
        with torch.no_grad():
            for z in forward_points(held_out, sigma, options.count).split(BATCH):
                base = whole.at(sigma).answers(z, sigma)
                base = base[: -len(masks)] if sigma < FINE else base   # the preset's own masks stand last
                asked = [each(z, sigma) for each in masks]
                warm = [answer for t in TEMPERATURES for answer in squares.at(sigma).answers(z, t * sigma)[:-1]]
                names = ["base"] * len(base) + ["mask"] * len(asked) + ["square"] * len(warm)
                entries = torch.stack([*base, *asked, *warm, network(z, sigma), reference(z, sigma)])
                entries = entries.double().flatten(2)
                tables.append(torch.einsum("gbd,kbd->bgk", entries, entries) / entries.shape[2])
        table, goal = torch.cat(tables).numpy(), len(names)
        mean = table.mean(0)
        floor = mean[goal, goal] - 2 * mean[goal, goal + 1] + mean[goal + 1, goal + 1]
        print(f"σ {sigma:g}: floor {floor:.6f}")
        for trial, kinds in TRIALS.items():
            members = [place for place, name in enumerate(names) if name in kinds]
            errors = [judge(table, members, goal, by) for by in (goal, goal + 1)]
            print(f"  {trial:12}", *(f"{e.mean():.6f} ± {e.std() / len(e) ** 0.5:.6f}" for e in errors), flush=True)


if __name__ == "__main__":
    main()
