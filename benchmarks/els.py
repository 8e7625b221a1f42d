"""ELS on CIFAR-10: seconds per noisy image and call, measured on some images and extrapolated linearly to 50,000.

    python benchmarks/els.py [--images 2000] [--threads 1]

Processor time, the best of three; limits tighten with the images seen, so few images look slower than many.
"""

from __future__ import annotations

import argparse
import time

import torch

from fpmc import load_images, presets

CASES = ((3, 0.14), (3, 0.296), (5, 0.55), (9, 1.09), (19, 3.26))      # size of patches and noise level


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    every = load_images("cifar10")
    images = every.subset(slice(1000, 1000 + options.images))
    random = torch.Generator().manual_seed(0)
    for size, sigma in CASES:
        denoiser = presets.els(images, schedule=size).using(threads=options.threads, backend="numba")
        z = every.scaled(slice(1)) + sigma * torch.randn(1, *every.shape, generator=random)
        denoiser(z, sigma)
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            denoiser(z, sigma)
            best = min(best, time.process_time() - began)
        each = best / options.images
        whole = each * 50_000 / 2
        print(f"{size:2} at {sigma:5}: {1e6 * each:6.0f} µs per image, {whole:5.1f} s for 50,000 on two cores")


if __name__ == "__main__":
    main()
