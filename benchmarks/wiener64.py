"""Wiener and Lukoianov at 64×64×3 (d = 12,288), set-up and masks of all levels: seconds and peak memory.

    python benchmarks/wiener64.py [--side 64] [--images 10000] [--levels 40]

Images are scenes made here. Run it twice with the same FPMC_HOME: the second run takes everything from the disk.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from scenes import scenes

from fpmc import presets
from fpmc.sampling import levels_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--levels", type=int, default=40)
    options = parser.parse_args()
    images = scenes(options.images, options.side)
    z = images.scaled(slice(2)) + torch.randn(2, *images.shape, generator=torch.Generator().manual_seed(1))

    def told(what: str, work: Callable[[], object]) -> object:
        began, used = time.perf_counter(), time.process_time()
        result = work()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        seconds = f"{time.perf_counter() - began:7.1f} s, {time.process_time() - used:7.1f} s of processors"
        print(f"{what:26} {seconds}, peak {peak:.2f} GiB", flush=True)
        return result

    denoiser = told("Wiener, set up", lambda: presets.wiener(images))
    told("Wiener, 2 noisy images", lambda: denoiser(z, 1.0))
    lukoianov = told("Lukoianov, set up", lambda: presets.lukoianov(images))
    levels = [sigma for sigma in levels_of(options.levels) if sigma > 0]

    def masks() -> None:
        for sigma in levels:
            lukoianov.at(sigma)

    told(f"masks of {len(levels)} levels", masks)


if __name__ == "__main__":
    main()
