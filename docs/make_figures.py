"""Pictures of the method pages, and the explorer's page: `python docs/make_figures.py FOLDER`, which `make docs` runs.

A picture shows what the estimator in the middle asks and answers, and one image denoised.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import fpmc
from fpmc.core.gaussian import fit_gaussian
from fpmc.files import atomic
from fpmc.learn.fit import labels
from fpmc.methods.wiener import wiener_matrix
from fpmc.report.grid import image_grid, stack

SIGMAS = (3.26, 1.09, 0.296)
DATA = fpmc.load_images("fashion").subset(slice(3000))
CLEAN = fpmc.load_images("fashion", split="test").scaled([28])          # (1, 1, 28, 28)


def main(folder: Path) -> None:
    presets = fpmc.presets
    methods = {
        "optimal": presets.optimal(DATA),
        "wiener": presets.wiener(DATA),
        "ls": presets.ls(DATA),
        "els": presets.els(DATA.subset(slice(500))),
        "pspc_square": presets.pspc_square(DATA),
        "pspc_flex": presets.pspc_flex(DATA, maps="wiener"),
        "lukoianov": presets.lukoianov(DATA),
    }
    for name, denoiser in methods.items():
        save(folder / f"{name}.png", method(denoiser))
    save(folder / "multiscale.png", groups_of(presets.multiscale(DATA), 1.09))
    network = fpmc.load_network("fashion-ddpmpp")
    names = ["PSPC-Square", "DDPM++"]
    fpmc.explore(methods["pspc_square"], DATA, network, export=folder / "explorer.html", names=names)


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


def groups_of(denoiser: fpmc.FPMC, sigma: float) -> Image.Image:
    """q of the estimator in the middle of some groups, and a test image denoised by all of them."""
    z = CLEAN + sigma * torch.randn(CLEAN.shape, generator=torch.Generator().manual_seed(0))
    collection = denoiser.at(sigma)
    local = [(name, group) for name, group in zip(labels(collection), collection.groups) if len(group) > 1][::2]
    q = torch.stack([shade(central(group.q.dense())) for _, group in local])
    answers = torch.cat([CLEAN, z, denoiser(z, sigma)])
    return stack([
        image_grid({"q": q}, columns=[name for name, _ in local], cell=112),
        image_grid({"": answers}, columns=["clean", "z", "D(z, σ)"], cell=112),
    ])


def save(path: Path, page: Image.Image) -> None:
    """Grey levels are all there is, and 64 of them are enough: a few KB each."""
    with atomic(path) as part:
        page.convert("L").quantize(64).save(part, format="png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
