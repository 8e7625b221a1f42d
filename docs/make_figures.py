"""Make the small pictures of the manual with fpmc itself: `python docs/make_figures.py`, about a minute on one core.

A picture per method (what its central estimator asks and answers, and one image denoised), and those of the tutorial.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import fpmc
from fpmc.core.gaussian import fit_gaussian
from fpmc.files import atomic
from fpmc.methods.wiener import wiener_matrix
from fpmc.report.grid import image_grid

FIGURES = Path(__file__).parent / "figures"
SIGMAS = (3.26, 1.09, 0.296)
DATA = fpmc.load_images("fashion").subset(slice(3000))
CLEAN = fpmc.load_images("fashion", split="test").scaled([6])           # (1, 1, 28, 28)


def main() -> None:
    presets = fpmc.presets
    methods = {
        "optimal": presets.optimal(DATA),
        "wiener": presets.wiener(DATA),
        "ls": presets.ls(DATA),
        "els": presets.els(DATA),
        "pspc_square": presets.pspc_square(DATA),
        "pspc_flex": presets.pspc_flex(DATA, maps="wiener"),
        "lukoianov": presets.lukoianov(DATA),
    }
    for name, denoiser in methods.items():
        save(f"methods/{name}", method(denoiser))
    save("tutorial/samples", samples([methods[name] for name in ("optimal", "wiener", "ls", "pspc_square")]))
    save("tutorial/augmentations", augmentations())


def method(denoiser: fpmc.FPMC) -> Image.Image:
    """q and r of the estimator in the middle, and a test image denoised, at three noise levels."""
    noise = torch.randn(CLEAN.shape, generator=torch.Generator().manual_seed(0))
    z = torch.cat([CLEAN + sigma * noise for sigma in SIGMAS])
    rows = {"z": z, "D(z, σ)": denoiser(z, torch.tensor(SIGMAS))}
    if denoiser.name == "Wiener":                       # q = r = 1 everywhere says nothing; the filter does
        gaussian = fit_gaussian(fpmc.Source(DATA))
        rows = {"row of W": torch.stack([filter_row(wiener_matrix(gaussian, sigma)) for sigma in SIGMAS])} | rows
    else:
        groups = [denoiser.at(sigma).groups[0] for sigma in SIGMAS]
        q, r = (torch.stack([shade(central(part.dense())) for part in parts])
                for parts in ([group.q for group in groups], [group.r for group in groups]))
        rows = {"q": q, "r": r} | rows
    return image_grid(rows, columns=[str(sigma) for sigma in SIGMAS], corner="σ")


def central(vectors: Tensor) -> Tensor:  # (L, 1, H, W) of a square grid of estimators -> (1, H, W)
    side = math.isqrt(len(vectors))
    return vectors[side // 2 * (side + 1)]


def filter_row(matrix: Tensor) -> Tensor:
    _, height, width = DATA.shape
    row = matrix[height // 2 * width + width // 2].view(1, height, width)
    return row / row.abs().max()                        # grey is 0, black is negative


def shade(values: Tensor) -> Tensor:
    return 1.7 * values / values.max() - 1              # the largest is light grey, to be told from the page


def samples(denoisers: list[fpmc.FPMC]) -> Image.Image:
    rows = {denoiser.name: fpmc.sample(denoiser, seeds=range(6)).images for denoiser in denoisers}
    return image_grid(rows, columns=[str(seed) for seed in range(6)], corner="seed")


def augmentations() -> Image.Image:
    few = DATA.subset(slice(6))
    kinds = ("xflip", "yflip", "translate", "rotate", "scale")
    return image_grid({"images": few.scaled()} | {kind: fpmc.augment(few, kind).scaled() for kind in kinds})


def save(name: str, page: Image.Image) -> None:
    """Grey levels are all there is, and 64 of them are enough: a few KB each."""
    with atomic(FIGURES / f"{name}.png") as part:
        page.convert("L").quantize(64).save(part, optimize=True)
    print(name, (FIGURES / f"{name}.png").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
