"""What images moved by one pixel are worth in the source of small squares: errors of fitted collections by noise level.

    python benchmarks/moved.py [--data fashion] [--count 64] [--sigmas 0.06 0.14 0.296 0.585 1.09 1.92 3.26]

Weights are fitted to DDPM++ on seven eighths of the noisy test images and judged on the rest, in turn, by the distance
to DDPM++ and to NCSN++. The floor is the distance between the two. "In their place": small squares ask moved images
only; "beside them": squares with moved images join, as `multiscale(moved=True)` has it.
"""

from __future__ import annotations

import argparse

import torch
from multiscale_trials import BATCH, judge

from fpmc import Collection, Source, load_network, presets
from fpmc.augmentation import moved
from fpmc.calibrate import forward_points
from fpmc.data import load_images
from fpmc.fit import labels
from fpmc.precision import Squares

SIGMAS = (0.06, 0.14, 0.296, 0.585, 1.09, 1.92, 3.26)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--sigmas", type=float, nargs="+", default=SIGMAS)
    options = parser.parse_args()
    source, held_out = Source(load_images(options.data)), load_images(options.data, split="test")
    network, reference = (load_network(f"{options.data}-{arch}") for arch in ("ddpmpp", "ncsnpp"))
    denoiser, wider, small = presets.multiscale(source), moved(source), min(source.shape[1:]) / 3
    for sigma in options.sigmas:
        plain = denoiser.at(sigma)
        doubled = [group for group in plain.groups if isinstance(group.q, Squares) and group.q.size <= small]
        both = Collection.of(*plain.groups, *(Collection(group.q, group.r, wider).groups[0] for group in doubled))
        tables = []
        with torch.no_grad():
            for z in forward_points(held_out, sigma, options.count).split(BATCH):
                entries = torch.stack([*both.answers(z, sigma), network(z, sigma), reference(z, sigma)])
                entries = entries.double().flatten(2)
                tables.append(torch.einsum("gbd,kbd->bgk", entries, entries) / entries.shape[2])
        table = torch.cat(tables).numpy()
        first, goal = len(plain.groups), len(both.groups)
        mean = table.mean(0)
        alone = [mean[k, k] - 2 * mean[k, goal] + mean[goal, goal] for k in range(goal + 2)]
        names = labels(both)
        print(f"σ {sigma:g}: floor {alone[goal + 1]:.5f}; alone " + ", ".join(
            f"{names[k]} {alone[k]:.5f}" for k in sorted(range(goal), key=alone.__getitem__)[:4]
        ))
        large = [k for k, group in enumerate(plain.groups) if group not in doubled]
        trials = {"without": range(first), "in their place": [*large, *range(first, goal)], "beside them": range(goal)}
        before = judge(table, list(range(first)), goal, goal)
        for name, members in trials.items():
            errors = [judge(table, list(members), goal, by) for by in (goal, goal + 1)]
            found = (f"{e.mean():.5f} ± {e.std() / len(e) ** 0.5:.5f}" for e in errors)
            change = (errors[0] - before) / before.mean()
            paired = f"{100 * change.mean():+.1f} ± {100 * change.std() / len(change) ** 0.5:.1f} %"
            print(f"  {name:15}", *found, paired, flush=True)


if __name__ == "__main__":
    main()
