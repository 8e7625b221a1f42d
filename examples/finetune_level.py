"""Soft Q and R at one noise level, learned against a stand-in for a network (Sections 4.1, 4.2).

The stand-in is the Wiener filter of all images, which needs no weights; give a network of your own in its place.

    python examples/finetune_level.py --images 300 --steps 10
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import tyro

import fpmc
from fpmc.learn.finetune import TuningStep
from fpmc.report.grid import image_grid


def main(
    images: int = 600,                                  # training images
    steps: int = 24,                                    # of AdamW; the paper takes 2000
    sigma: float = 3.26,
    outdir: Path = Path("runs/examples"),               # where soft_q.png and the denoiser go
) -> None:
    everything = fpmc.load_images("fashion")
    network = fpmc.presets.wiener(everything)           # anything called as (z, sigma) will do
    data = everything.subset(slice(images))
    hard = fpmc.presets.pspc_square(data)

    def tell(now: TuningStep) -> None:
        if now.validation is not None:
            print(f"step {now.step:3}: loss {now.loss:.4f}, on held-out images {now.validation:.4f}")

    soft = fpmc.finetune(
        hard, network, data, sigmas=[sigma], steps=steps, batch=16, monte_carlo=200,
        validate_every=max(1, steps // 4), validation=32, progress=tell,
    )  # fmt: skip

    x = fpmc.load_images("fashion", split="test").scaled(range(32))     # seen by neither
    z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    target = network(z, sigma)
    for denoiser in (hard, soft):
        print(f"{denoiser.name:25} error to the network {(denoiser(z, sigma) - target).square().mean():.4f}")

    soft.save_pretrained(outdir / "soft")
    side = math.isqrt(len(soft.at(sigma)))              # squares lie in a grid
    middle, rows = side // 2 * (side + 1), {}
    for name in ("q", "r"):
        before, after = (getattr(d.at(sigma).groups[0], name).dense()[middle] for d in (hard, soft))
        rows[name] = 2 * torch.stack([before, after / after.max()]) - 1
    image_grid(rows, columns=["before", "after"]).save(outdir / "soft_q.png")
    print(outdir / "soft_q.png")


if __name__ == "__main__":
    tyro.cli(main)
