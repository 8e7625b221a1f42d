"""Errors where samples really pass: by noise level on three kinds of noisy images, and what samples look like.

    fpmc reproduce table-results --methods pspc_flex soft multiscale --outdir runs/results
    python benchmarks/paths.py --cache runs/results/cache [--methods pspc_flex soft multiscale] [--count 48]

Noisy images are held-out images with noise, states of the network's own sampling, and states of the denoiser's own.
Errors are to the network at the same noisy image, ± standard error; contrast is NCSN++'s times so much.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from fpmc.learn.calibrate import forward_points, trajectory_points
from fpmc.metrics import standard_error
from fpmc.study import tasks
from fpmc.study.build import build
from fpmc.study.graph import Cache, Results, run
from fpmc.study.lab import Lab
from fpmc.study.methods import REFERENCE, table_rows
from fpmc.study.scale import SCALES

SIGMAS = (8.4, 5.3, 3.26, 1.92, 1.09, 0.585, 0.296, 0.14)


def shown(errors: Tensor) -> str:
    return f"{errors.mean():.5f} ± {standard_error(errors):.5f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--methods", nargs="+", default=("pspc_flex", "soft", "multiscale"), help="of table-results")
    parser.add_argument("--count", type=int, default=48)
    options = parser.parse_args()
    lab, results = Lab.open(options.data, SCALES["laptop"], only=options.methods), Results()
    rows = table_rows(lab)
    samples = {method: tasks.samples(lab, method) for method in (REFERENCE, *rows)}
    for _ in run([step for each in samples.values() for step in each], lab, Cache(options.cache), results):
        pass

    truth = tasks.drawn(results, samples[REFERENCE])
    first = (tasks.drawn(results, samples[rows[0]]) - truth).square().mean((1, 2, 3))
    for method in rows:
        images = tasks.drawn(results, samples[method])
        contrast = (images.flatten(1).std(1) / truth.flatten(1).std(1)).mean()
        error = (images - truth).square().mean((1, 2, 3))
        print(f"{method.label}: samples {shown(error)} from NCSN++'s, {shown(error - first)} more than the first row; "
              f"contrast {contrast:.3f}, brightness {(images - truth).mean():+.4f}")

    levels, shape = [lab.level(sigma) for sigma in SIGMAS], lab.images.shape
    theirs = trajectory_points(lab.network, shape, levels, options.count)
    for method in rows:
        denoiser = build(lab, method, {step.name: results[step] for step in tasks.needs(lab, method, lab.grid)})
        own = trajectory_points(denoiser, shape, levels, options.count)
        for sigma in levels:
            noisy = {"held-out": forward_points(lab.judging, sigma, options.count),
                     "network's path": theirs[sigma], "own path": own[sigma]}
            with torch.no_grad():
                errors = {name: (denoiser(z, sigma) - lab.network(z, sigma)).square().mean((1, 2, 3))
                          for name, z in noisy.items()}
            print(f"{method.label}, σ {sigma:.3g}: " + ", ".join(f"{name} {shown(e)}" for name, e in errors.items()),
                  flush=True)


if __name__ == "__main__":
    main()
