"""At which noise levels a denoiser loses its way: samples that a network begins or ends.

    fpmc reproduce table-results --methods ddpmpp multiscale --outdir runs/results
    python benchmarks/handover.py --cache runs/results/cache [--method multiscale] [--seeds 64]

r² against NCSN++ from the same seeds, of the denoiser below a noise level with DDPM++ above it, and the other way
round; contrast and sharpness are those of NCSN++'s samples times so much.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from fpmc import compare, sample
from fpmc.metrics import paired
from fpmc.process import Denoiser
from fpmc.study import tasks
from fpmc.study.build import build
from fpmc.study.graph import Cache, Results, run
from fpmc.study.lab import Lab
from fpmc.study.methods import table_rows
from fpmc.study.scale import SCALES

SIGMAS = (19.4, 8.4, 3.26, 1.09, 0.296)


def switched(above: Denoiser, below: Denoiser, at: float) -> Denoiser:
    """One denoiser where σ > at, another elsewhere."""
    return lambda z, sigma: (above if float(torch.as_tensor(sigma).max()) > at else below)(z, sigma)


def look(name: str, images: Tensor, truth: Tensor) -> None:
    found = compare(images, truth)
    contrast = (images.flatten(1).std(1) / truth.flatten(1).std(1)).mean()
    edges = [each.diff(dim=3).square().mean() + each.diff(dim=2).square().mean() for each in (images, truth)]
    print(
        f"{name:42} r² {found.r2:.3f} ± {found.r2_se:.3f}  contrast {contrast:.3f}  "
        f"sharpness {(edges[0] / edges[1]).sqrt():.3f}  brightness {(images - truth).mean():+.3f}", flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--method", default="multiscale", help="a row of table-results")
    parser.add_argument("--seeds", type=int, default=64)
    options = parser.parse_args()
    lab, results = Lab.open(options.data, SCALES["laptop"], only=[options.method]), Results()
    needed = tasks.needs(lab, table_rows(lab)[0], lab.grid)
    for _ in run(needed, lab, Cache(options.cache), results):
        pass
    denoiser = build(lab, table_rows(lab)[0], {step.name: results[step] for step in needed})

    def drawn(by: Denoiser) -> Tensor:
        return sample(by, seeds=range(options.seeds), shape=lab.images.shape, batch=16).images

    truth, ceiling, own = drawn(lab.reference), drawn(lab.network), drawn(denoiser)
    look("DDPM++", ceiling, truth)
    look(options.method, own, truth)
    lost = paired(compare(ceiling, truth), compare(own, truth)).r2_per_image.sort(descending=True).values
    few = len(lost) // 8
    print(f"{few} of {len(lost)} seeds hold {lost[:few].sum() / lost.sum():.0%} of the r² that is lost to DDPM++")
    for sigma in SIGMAS:
        look(f"DDPM++ above σ = {sigma:g}, then {options.method}", drawn(switched(lab.network, denoiser, sigma)), truth)
        look(f"{options.method} above σ = {sigma:g}, then DDPM++", drawn(switched(denoiser, lab.network, sigma)), truth)


if __name__ == "__main__":
    main()
