"""The best patch grows with the noise: LS with every patch size at every noise level (App. C.1).

Errors are to the clean test images, so no network is needed; `fpmc calibrate` does the same against a network.

    python examples/patch_size.py --images 500 --count 8
"""

from __future__ import annotations

from pathlib import Path

import torch
import tyro

import fpmc
from fpmc.report.table import plain

SIGMAS = (8.40, 3.26, 1.92, 1.09, 0.585, 0.296, 0.140)  # of the paper's 18-step grid
SIZES = (3, 5, 7, 9, 13, 17, 23, 31, 55)                # 55 covers a 28×28 image from any of its pixels


def main(
    images: int = 3000,                                 # training images
    count: int = 32,                                    # noisy test images at each level
    outdir: Path = Path("runs/examples"),               # where the denoiser with the best sizes is saved
) -> None:
    data = fpmc.load_images("fashion").subset(slice(images))
    x = fpmc.load_images("fashion", split="test").scaled(range(count))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    by_size = {size: fpmc.presets.ls(data, schedule=size) for size in SIZES}

    rows, best = [], {}
    for sigma in SIGMAS:
        z = x + sigma * noise
        errors = {size: (ls(z, sigma) - x).square().mean().item() for size, ls in by_size.items()}
        best[sigma] = min(errors, key=lambda size: errors[size])
        cells = [f"{error:.3f}" + ("*" if size == best[sigma] else " ") for size, error in errors.items()]
        rows.append((f"σ = {sigma:g}", *cells))
    print(plain(("", *(f"{size} " for size in SIZES)), rows))

    tuned = fpmc.presets.ls(data, schedule=best)        # a schedule is a dict {sigma: size}
    tuned.save_pretrained(outdir / "ls-tuned")
    again = fpmc.FPMC.from_pretrained(outdir / "ls-tuned", images=data)
    print(f"saved and loaded: the same to {(again(x, 0.5) - tuned(x, 0.5)).abs().max():.0e}")
    print(outdir / "ls-tuned")


if __name__ == "__main__":
    tyro.cli(main)
