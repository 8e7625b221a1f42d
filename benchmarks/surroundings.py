"""How much say the rest of the image should have in a square's answer: error by size and q outside, alone and mixed.

    python benchmarks/surroundings.py [--data fashion] [--count 64] [--sigmas 0.14 0.296 0.585 1.09 1.92 3.26 5.32 8.4]

Weights are fitted to DDPM++ on seven eighths of the noisy test images and judged on the rest, in turn, by the distance
to DDPM++ and to NCSN++. The floor is the distance between the two.
"""

from __future__ import annotations

import argparse

import torch
from multiscale_trials import BATCH, judge

from fpmc import Collection, Source, load_network, presets
from fpmc.data import load_images
from fpmc.learn.calibrate import forward_points

SIZES = (3, 5, 9, 13)
SHARES = (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.45, 0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--sigmas", type=float, nargs="+", default=(0.14, 0.296, 0.585, 1.09, 1.92, 3.26, 5.32, 8.4))
    options = parser.parse_args()
    source, held_out = Source(load_images(options.data)), load_images(options.data, split="test")
    network, reference = (load_network(f"{options.data}-{arch}") for arch in ("ddpmpp", "ncsnpp"))
    plain = presets.multiscale(source, around=())
    names = [(size, share) for size in SIZES for share in SHARES]
    surrounded = Collection.of(*(
        group for size, share in names
        for group in presets.pspc_square(source, schedule=size, stride=max(1, size // 4), around=share).at(1.0).groups
    ))
    for sigma in options.sigmas:
        tables, base = [], plain.at(sigma)
        with torch.no_grad():
            for z in forward_points(held_out, sigma, options.count).split(BATCH):
                answers = [*base.answers(z, sigma), *surrounded.answers(z, sigma)]
                entries = torch.stack([*answers, network(z, sigma), reference(z, sigma)]).double().flatten(2)
                tables.append(torch.einsum("gbd,kbd->bgk", entries, entries) / entries.shape[2])
        table = torch.cat(tables).numpy()
        first, goal = len(base.groups), table.shape[1] - 2
        mean = table.mean(0)
        alone = [mean[k, k] - 2 * mean[k, goal] + mean[goal, goal] for k in range(goal)]
        floor = mean[goal, goal] - 2 * mean[goal, goal + 1] + mean[goal + 1, goal + 1]
        print(f"σ {sigma:g}: floor {floor:.5f}, best group without surroundings {min(alone[:first]):.5f}")
        for size in SIZES:
            found = ((share, alone[first + names.index((size, share))]) for share in SHARES)
            print(f"  square of {size}: " + ", ".join(f"{share:g} {error:.5f}" for share, error in found))
        for name, members in (("without", range(first)), ("with", range(goal))):
            errors = [judge(table, list(members), goal, by) for by in (goal, goal + 1)]
            found = (f"{e.mean():.5f} ± {e.std() / len(e) ** 0.5:.5f}" for e in errors)
            print(f"  together {name:8}", *found, flush=True)


if __name__ == "__main__":
    main()
