"""Whether q should fall off with the distance from a square instead of being c all around it: errors alone and mixed.

    python benchmarks/graded.py [--data fashion] [--count 32] [--sigmas 1.09 1.92 3.26]

q = c + (1 − c) exp(−distance / λ), distances in pixels along the farther axis, around squares of 3 and 5 pixels with
stride 2. Weights are fitted to DDPM++ on seven eighths of the noisy test images and judged on the rest, in turn.
"""

from __future__ import annotations

import argparse

import torch
from multiscale_trials import BATCH, judge
from torch import Tensor

from fpmc import Collection, Source, load_network, presets
from fpmc.core.precision import Precisions, Squares
from fpmc.core.response import SameAsQ
from fpmc.data import load_images
from fpmc.learn.calibrate import forward_points
from fpmc.methods.multiscale import HALF

LENGTHS = (1.5, 3.0, 6.0)


def distances(squares: Squares) -> Tensor:
    """From every pixel to each square, (L, 1, H, W)."""
    along = []
    for length in (squares.height, squares.width):
        start, at = squares.starts(length)[:, None], torch.arange(length)
        along.append(torch.maximum(start - at, at - (start + squares.size - 1)).clamp(min=0))
    rows, columns = along
    return torch.maximum(rows[:, None, :, None], columns[None, :, None]).reshape(-1, 1, squares.height, squares.width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--sigmas", type=float, nargs="+", default=(1.09, 1.92, 3.26))
    options = parser.parse_args()
    source, held_out = Source(load_images(options.data)), load_images(options.data, split="test")
    network, base = load_network(f"{options.data}-ddpmpp"), presets.multiscale(source)
    _, height, width = source.shape
    for sigma in options.sigmas:
        around = sigma**2 / (sigma**2 + HALF)
        names, graded = [], []
        for size in (3, 5):
            squares = Squares(size, height, width, inside=True, stride=2)
            for length in LENGTHS:
                for share in (0.0, around / 3, around / 1.5):
                    q = share + (1 - share) * torch.exp(-distances(squares) / length)
                    names.append(f"square {size}, λ = {length:g}, c = {share:.3f}")
                    graded += Collection(Precisions(q), SameAsQ(squares), source).groups
        both, first = Collection.of(*base.at(sigma).groups, *graded), len(base.at(sigma).groups)
        tables = []
        with torch.no_grad():
            for z in forward_points(held_out, sigma, options.count).split(BATCH):
                entries = torch.stack([*both.answers(z, sigma), network(z, sigma)]).double().flatten(2)
                tables.append(torch.einsum("gbd,kbd->bgk", entries, entries) / entries.shape[2])
        table = torch.cat(tables).numpy()
        goal, mean = len(both.groups), table.mean(0)
        alone = [mean[k, k] - 2 * mean[k, goal] + mean[goal, goal] for k in range(goal)]
        print(f"σ {sigma:g}: best group of the preset {min(alone[:first]):.5f}")
        for name, error in zip(names, alone[first:]):
            print(f"  {name:32} {error:.5f}")
        for name, members in (("the preset's groups", range(first)), ("and graded ones", range(goal))):
            errors = judge(table, list(members), goal, goal)
            print(f"  {name:32} {errors.mean():.5f} ± {errors.std() / len(errors) ** 0.5:.5f}", flush=True)


if __name__ == "__main__":
    main()
