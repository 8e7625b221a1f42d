"""ELS on CIFAR-10: seconds per noisy image and call, measured on some images and extrapolated linearly to 50,000.

    python benchmarks/els.py [--images 2000] [--threads 1] [--against shifts] [--outdir runs/els]

Processor time, the best of three; limits tighten with the images seen, so few images look slower than many. What the
plan chooses alternates with another kernel, and each is compared with torch in float64 on 16 images.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from fpmc import FPMC, load_images, presets

CASES = ((3, 0.14), (3, 0.296), (5, 0.296), (5, 0.55), (7, 0.585), (9, 1.09), (15, 1.92), (19, 3.26))
CHECKED = 16


def spent(denoiser: FPMC, z: Tensor, sigma: float) -> float:
    began = time.process_time()
    denoiser(z, sigma)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", default="shifts", help="the other kernel")
    parser.add_argument("--outdir", type=Path, default=Path("runs/els"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    every = load_images("cifar10")
    images = every.subset(slice(1000, 1000 + options.images))
    random, found = torch.Generator().manual_seed(0), []
    for size, sigma in CASES:
        chosen = presets.els(images, schedule=size).using(threads=options.threads, backend="numba")
        both = chosen, chosen.using(kernels=(options.against,))
        z = every.scaled(slice(1)) + sigma * torch.randn(1, *every.shape, generator=random)
        times = [[spent(each, z, sigma) for each in both] for _ in range(4)][1:]   # the first one compiles and sorts
        best = [1e6 * min(each) / options.images for each in zip(*times)]
        few = presets.els(images.subset(slice(CHECKED)), schedule=size)
        error = (few.using(backend="numba")(z, sigma) - few(z.double(), sigma)).abs().max().item()
        kernel = chosen.explain(sigma).split(":")[1].split(",")[0].strip()
        found.append({
            "size": size, "sigma": sigma, "kernel": kernel, "µs per image": best[0], options.against: best[1],
            "s for 50,000 on two cores": 0.025 * best[0], "error": error,
        })
        print(
            f"{size:2} at {sigma:5}: {kernel:14} {best[0]:5.0f} µs per image, {0.025 * best[0]:5.1f} s for 50,000 "
            f"on two cores; {options.against} {best[1]:5.0f} µs, {best[1] / best[0]:.2f} times; error {error:.0e}"
        )
    options.outdir.mkdir(parents=True, exist_ok=True)
    (options.outdir / "els.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
