"""The Wiener filter at 64×64×3 (d = 12,288): peak memory and time, on smooth random images.

    python benchmarks/wiener64.py [--side 64] [--images 2000]
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from fpmc import presets
from fpmc.images import ImageSet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--images", type=int, default=2000)
    options = parser.parse_args()
    shape = (options.images, 3, options.side + 8, options.side + 8)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(shape, generator=torch.Generator().manual_seed(0)), 9, 1)
    images = ImageSet((127.5 + 400 * smooth).clip(0, 255).byte())
    start = time.perf_counter()
    denoiser = presets.wiener(images)
    fitted = time.perf_counter()
    z = images.scaled(slice(8)) + torch.randn(8, *images.shape, generator=torch.Generator().manual_seed(1))
    denoiser(z, 1.0)
    called = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    d = 3 * options.side**2
    print(f"d = {d}: fit {fitted - start:.0f} s, call {(called - fitted) / 8:.2f} s/image, peak {peak:.2f} GiB")


if __name__ == "__main__":
    main()
