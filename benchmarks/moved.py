"""What copies of the images are worth in multi-scale collections: errors of fitted collections by noise level.

    python benchmarks/moved.py [--data fashion] [--count 64] [--sigmas 0.06 0.14 … 12.9]

Weights are fitted to DDPM++ on seven eighths of the noisy test images and judged on the rest, in turn, by the distance
to DDPM++ and to NCSN++; changes are paired, in percent. The floor is the distance between the two.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from multiscale_trials import BATCH, judge

from fpmc import load_network, presets
from fpmc.data import load_images
from fpmc.learn.calibrate import forward_points
from fpmc.learn.fit import labels

COPIES = ("moved", "moved alone", "turned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=64)
    sigmas = (0.06, 0.14, 0.296, 0.585, 1.09, 1.92, 3.26, 5.32, 8.4, 12.9)
    parser.add_argument("--sigmas", type=float, nargs="+", default=sigmas)
    options = parser.parse_args()
    images, held_out = load_images(options.data), load_images(options.data, split="test")
    network, reference = (load_network(f"{options.data}-{arch}") for arch in ("ddpmpp", "ncsnpp"))
    denoiser = presets.multiscale(images, moved=True)
    for sigma in options.sigmas:
        collection, tables = denoiser.at(sigma), []
        with torch.no_grad():
            for z in forward_points(held_out, sigma, options.count).split(BATCH):
                entries = torch.stack([*collection.answers(z, sigma), network(z, sigma), reference(z, sigma)])
                entries = entries.double().flatten(2)
                tables.append(torch.einsum("gbd,kbd->bgk", entries, entries) / entries.shape[2])
        table, names = torch.cat(tables).numpy(), labels(collection)
        goal = len(names)
        originals = [k for k, name in enumerate(names) if not name.endswith(COPIES)]
        trials = {"originals": originals}
        for kind in COPIES:
            if some := [k for k, name in enumerate(names) if name.endswith(f" {kind}")]:
                trials[f"and {kind}"] = originals + some
        trials["all"] = list(range(goal))
        floor = np.mean(table[:, goal, goal] - 2 * table[:, goal, goal + 1] + table[:, goal + 1, goal + 1])
        print(f"σ {sigma:g}: floor {floor:.5f}")
        before = [judge(table, originals, goal, by) for by in (goal, goal + 1)]
        for name, members in trials.items():
            after = [judge(table, members, goal, by) for by in (goal, goal + 1)]
            print(f"  {name:16}", *map(_row, after, before), sep="  ", flush=True)


def _row(errors: np.ndarray, before: np.ndarray) -> str:
    change, count = 100 * (errors - before) / before.mean(), len(errors) ** 0.5
    return f"{errors.mean():.5f} ± {errors.std() / count:.5f} ({change.mean():+.1f} ± {change.std() / count:.1f} %)"


if __name__ == "__main__":
    main()
