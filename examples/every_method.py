"""One noisy image, denoised by every method of the paper's Table 1 at three noise levels.

    python examples/every_method.py --images 500
"""

from __future__ import annotations

from pathlib import Path

import torch
import tyro

import fpmc
from fpmc.report.grid import image_grid
from fpmc.report.table import plain

SIGMAS = (3.26, 1.09, 0.296)                            # three levels of the 18-step grid


def main(
    images: int = 2000,                                 # training images
    index: int = 3,                                     # which test image
    outdir: Path = Path("runs/examples"),               # where every_method.png goes
) -> None:
    data = fpmc.load_images("fashion").subset(slice(images))
    x = fpmc.load_images("fashion", split="test").scaled([index])       # (1, 1, 28, 28)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    z = torch.cat([x + sigma * noise for sigma in SIGMAS])
    sigmas = torch.tensor(SIGMAS)                       # a denoiser takes one noise level for each z

    presets = fpmc.presets
    denoisers = (
        presets.optimal(data),
        presets.wiener(data),
        presets.ls(data),
        presets.els(data),
        presets.pspc_square(data),
        presets.pspc_flex(data, maps="wiener"),
        presets.lukoianov(data),
    )
    pictures, rows = {"clean": x.expand_as(z), "noisy": z}, []
    for denoiser in denoisers:
        x0 = denoiser(z, sigmas)
        errors = (x0 - x).square().flatten(1).mean(1)
        pictures[denoiser.name] = x0
        rows.append((denoiser.name, *(f"{error:.3f}" for error in errors)))
    print(plain(("mean squared error", *(f"σ = {sigma}" for sigma in SIGMAS)), rows))

    outdir.mkdir(parents=True, exist_ok=True)
    columns = [str(sigma) for sigma in SIGMAS]
    image_grid(pictures, columns=columns, corner="σ").save(outdir / "every_method.png")
    print(outdir / "every_method.png")


if __name__ == "__main__":
    tyro.cli(main)
