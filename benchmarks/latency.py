"""One noisy image at a time, as the explorer asks, against its share of a batch: seconds, alternating within a run.

    python benchmarks/latency.py [--outdir runs/latency] [--data fashion cifar10] [--sigmas 0.1 1 10] [--batch 8]
        [--rounds 5] [--methods ls pspc_square …]

The aim is that one alone takes at most 1.5 times what it takes in a batch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from timing import spent

from fpmc import presets
from fpmc.core.fpmc import FPMC
from fpmc.data import load_images
from fpmc.images import ImageSet

METHODS: dict[str, Callable[[ImageSet], FPMC]] = {
    "optimal": presets.optimal, "ls": presets.ls, "pspc_square": presets.pspc_square, "pspc_flex": presets.pspc_flex,
    "lukoianov": presets.lukoianov,
}
AIM = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/latency"))
    parser.add_argument("--data", nargs="+", default=["fashion", "cifar10"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--sigmas", nargs="+", type=float, default=[0.1, 1.0, 10.0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = []
    for data in options.data:
        images, held_out = load_images(data), load_images(data, split="test")
        noise = torch.randn(options.batch, *images.shape, generator=torch.Generator().manual_seed(0))
        for method in options.methods:
            denoiser = METHODS[method](images)
            for sigma in options.sigmas:
                z = held_out.scaled(slice(options.batch)) + sigma * noise
                row = compared(denoiser, z, sigma, options.rounds)
                found.append({"data": data, "method": method, "sigma": sigma, **row})
                told = f"{row['alone']:8.4f} s alone, {row['in a batch']:8.4f} s in a batch, {row['ratio']:5.2f}"
                told += f" of wall, {row['ratio of processors']:5.2f} of processors"
                print(f"{data:8} {method:12} {sigma:5g} {told}{'  above the aim' * (row['ratio'] > AIM)}", flush=True)
    options.outdir.mkdir(parents=True, exist_ok=True)
    found = {"threads": torch.get_num_threads(), "batch": options.batch, "rows": found}
    (options.outdir / "latency.json").write_text(json.dumps(found, indent=1))


def compared(denoiser: FPMC, z: torch.Tensor, sigma: float, rounds: int) -> dict[str, float]:
    """The best of some rounds, one noisy image after the other and all of them at once."""
    denoiser(z[:1], sigma), denoiser(z, sigma)          # compile, plan and lay out
    alone, together = [], []
    for k in range(rounds):
        alone += [spent(lambda one=one: denoiser(one, sigma)) for one in z[k % len(z) :][:1].split(1)]
        together.append(spent(lambda: denoiser(z, sigma)))
    (wall, used), (walls, useds) = ([min(each) for each in zip(*times)] for times in (alone, together))
    share, used_share = walls / len(z), useds / len(z)
    return {
        "alone": wall, "in a batch": share, "ratio": wall / share, "processors alone": used,
        "processors in a batch": used_share, "ratio of processors": used / used_share,
    }


if __name__ == "__main__":
    main()
