"""A source of 20 times CIFAR-10, streamed from disk, against CIFAR-10 itself: seconds and memory beyond the images.

    python benchmarks/union.py [--outdir runs/union] [--amount 20] [--batch 4]

Run it alone, with 4 GB of disk to spare. The augmented images are made once, which is timed on its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from timing import seconds

from fpmc import Source, augment, presets
from fpmc.augmentation import Augmented
from fpmc.data import load_images

SIGMA = 1.09


def peak() -> float:
    """GiB this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/union"))
    parser.add_argument("--amount", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    images, held_out = load_images("cifar10"), load_images("cifar10", split="test")
    noise = torch.randn(options.batch, *images.shape, generator=torch.Generator().manual_seed(0))
    z = held_out.scaled(slice(options.batch)) + SIGMA * noise
    plain = presets.pspc_square(images)
    base, before = seconds(lambda: plain(z, SIGMA)), peak()
    start = time.perf_counter()
    more = augment(images, "translate", amount=options.amount)
    assert isinstance(more, Augmented)
    more.stored()
    made = time.perf_counter() - start
    union = Source(images) | more
    large = presets.pspc_square(union)
    most = seconds(lambda: large(z, SIGMA), 2)
    again = seconds(lambda: plain(z, SIGMA))                        # the machine may have changed its pace
    found = {
        "images": len(images), "union": len(union), "seconds": base, "seconds again": again, "union seconds": most,
        "ratio": most / min(base, again), "images ratio": len(union) / len(images), "seconds to make": made,
        "peak GiB before": before, "peak GiB": peak(),
    }
    print(json.dumps(found, indent=1))
    options.outdir.mkdir(parents=True, exist_ok=True)
    (options.outdir / "union.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
