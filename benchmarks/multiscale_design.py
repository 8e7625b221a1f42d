"""What choices behind multi-scale collections are worth: strides, an output gain, weights per pixel, estimates of σ.

    python benchmarks/multiscale_design.py [--data fashion] [--images 4000] [--count 64]

Errors are to clean test images, mean over all of them.
"""

from __future__ import annotations

import argparse

import torch

from fpmc import Source, presets
from fpmc.core.gaussian import fit_gaussian
from fpmc.data import load_images
from fpmc.learn.calibrate import forward_points
from fpmc.learn.fit import fit_level
from fpmc.methods.wiener import estimate_sigma

SIGMAS = (0.34, 1.24, 3.44)
ESTIMATED = (0.02, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0)
SIZES = (5, 7, 12, 18)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--count", type=int, default=64)
    options = parser.parse_args()
    images = load_images(options.data).subset(slice(options.images))
    held_out = load_images(options.data, split="test")
    source, clean = Source(images), held_out.scaled(slice(options.count))

    for sigma in SIGMAS:
        z = forward_points(held_out, sigma, options.count)
        for size in SIZES:
            errors = {
                stride: (presets.pspc_square(source, schedule=size, stride=stride)(z, sigma) - clean).square().mean()
                for stride in sorted({1, max(1, size // 4), size // 2})
            }
            print(f"σ {sigma}, squares of {size}, error by stride:",
                  ", ".join(f"{stride}: {error:.5f}" for stride, error in errors.items()))
        collection = presets.multiscale(source).at(sigma)
        found = fit_level(collection, sigma, "clean", held_out, count=options.count)
        print(f"σ {sigma}, fit, other images: error {found.error:.4f}, best group alone {found.singles.min():.4f};",
              f"Σ w free: sum {found.free_sum:.3f}, error {found.free_error:.4f}")
        found = fit_level(collection, sigma, "clean", held_out, count=options.count, per="pixel")
        print(f"σ {sigma}, weights per pixel: error {found.error:.4f}, ridge towards the common ones {found.ridge:g}")

    gaussian = fit_gaussian(source)
    for sigma in ESTIMATED:
        ratio = estimate_sigma(gaussian, forward_points(held_out, sigma, options.count)) / sigma
        low, middle, high = ratio.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
        print(f"σ {sigma}: estimate / truth, median {middle:.3f}, 10 to 90 % {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
