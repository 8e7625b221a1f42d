"""A source of 21 times CIFAR-10, streamed from disk, against CIFAR-10 itself: seconds and memory beyond the images.

    python benchmarks/union.py [--outdir runs/union] [--amount 20] [--batch 32] [--rounds 2] [--memory 1]

Run it alone, with 4 GB of disk to spare. The augmented images are made once, which is timed on its own. Calls on both
sources alternate; the aim is a ratio of at most 1.3 times that of the numbers of images.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from timing import peak, spent

from fpmc import Source, augment, presets
from fpmc.augmentation import Augmented
from fpmc.data import load_images
from fpmc.engine import Call

SIGMA = 1.09


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/union"))
    parser.add_argument("--amount", type=float, default=20.0, help="augmented images, in multiples of CIFAR-10")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2, help="calls on each source, after a first one")
    parser.add_argument("--memory", type=float, default=1.0, help="GiB the engine may use beyond the images")
    options = parser.parse_args()
    images, held_out = load_images("cifar10"), load_images("cifar10", split="test")
    noise = torch.randn(options.batch, *images.shape, generator=torch.Generator().manual_seed(0))
    z = held_out.scaled(slice(options.batch)) + SIGMA * noise
    start = time.perf_counter()
    more = augment(images, "translate", amount=options.amount)
    assert isinstance(more, Augmented)
    more.stored()
    made = time.perf_counter() - start
    union, before = Source(images) | more, peak()
    plain, large = (presets.pspc_square(each).using(memory=int(options.memory * 2**30)) for each in (images, union))
    plain(z[:1], SIGMA), large(z[:1], SIGMA)            # compile, and lay out what is kept
    took = {"plain": [], "union": []}
    for _ in range(options.rounds):
        for name, denoiser in (("plain", plain), ("union", large)):
            took[name].append(spent(lambda denoiser=denoiser: denoiser(z, SIGMA)))
    wall, processors = ({name: min(each[k] for each in calls) for name, calls in took.items()} for k in (0, 1))
    expected = len(union) / len(images)
    plan = large.at(SIGMA).plan(Call(SIGMA, options.batch), large.settings)
    found = {
        "images": len(images), "union": len(union), "batch": options.batch, "threads": torch.get_num_threads(),
        "wall seconds": wall, "processor seconds": processors, "calls": took,
        "ratio of images": expected, "ratio of wall": wall["union"] / wall["plain"],
        "ratio of processors": processors["union"] / processors["plain"],
        "overhead of wall": wall["union"] / wall["plain"] / expected,
        "seconds to make": made, "plan MiB": plan.memory / 2**20, "peak GiB before": before, "peak GiB": peak(),
    }
    print(plan)
    print(json.dumps(found, indent=1))
    options.outdir.mkdir(parents=True, exist_ok=True)
    (options.outdir / "union.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
