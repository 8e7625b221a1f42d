"""Where soft Q and R help: error to the network by noise level on three kinds of noisy images, and contrast of samples.

    fpmc reproduce table-results --methods pspc_flex soft --outdir runs/results
    python benchmarks/soft_paths.py --cache runs/results/cache [--count 48]

Noisy images are held-out images with noise, states of the network's own sampling, and states of PSPC-Flex's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from fpmc.calibrate import forward_points, trajectory_points
from fpmc.experiments import steps
from fpmc.experiments.graph import Cache, Results, run
from fpmc.experiments.lab import Lab
from fpmc.experiments.methods import PSPC_FLEX, REFERENCE, SOFT, Method, build
from fpmc.experiments.scale import SCALES
from fpmc.metrics import standard_error

SIGMAS = (5.3, 3.26, 1.92, 1.09, 0.585, 0.296, 0.14)
METHODS: dict[str, Method] = {"PSPC-Flex": PSPC_FLEX, "soft Q/R": SOFT, "NCSN++": REFERENCE}


def change(before: Tensor, after: Tensor) -> str:
    """In percent, paired."""
    difference = 100 * (after - before) / before.mean()
    return f"{before.mean():.5f} → {after.mean():.5f}, {difference.mean():+.1f} ± {standard_error(difference):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=48)
    options = parser.parse_args()
    lab, results = Lab.open(options.data, SCALES["laptop"]), Results()
    wanted = {name: steps.samples(lab, method) for name, method in METHODS.items()}
    for _ in run([step for each in wanted.values() for step in each], lab, Cache(options.cache), results):
        pass

    samples = {name: steps.drawn(results, each) for name, each in wanted.items()}
    truth = samples["NCSN++"]
    errors = {name: (images - truth).square().mean((1, 2, 3)) for name, images in samples.items()}
    print("samples, MSE to NCSN++:", change(errors["PSPC-Flex"], errors["soft Q/R"]))
    for name, images in samples.items():
        contrast = (images.flatten(1).std(1) / truth.flatten(1).std(1)).mean()
        print(f"  {name}: contrast {contrast:.3f} of NCSN++'s, brightness {(images - truth).mean():+.4f}")

    binary, soft = (
        build(lab, method, {step.name: results[step] for step in steps.needs(lab, method, lab.grid)})
        for method in (PSPC_FLEX, SOFT)
    )
    levels, shape = [lab.level(sigma) for sigma in SIGMAS], lab.images.shape
    paths = {
        "network's path": trajectory_points(lab.network, shape, levels, options.count),
        "PSPC-Flex's path": trajectory_points(binary, shape, levels, options.count),
    }
    for sigma in levels:
        noisy = {"held-out": forward_points(lab.judging, sigma, options.count)}
        for name, z in (noisy | {name: path[sigma] for name, path in paths.items()}).items():
            with torch.no_grad():
                wanted_answer = lab.network(z, sigma)
                before, after = ((d(z, sigma) - wanted_answer).square().mean((1, 2, 3)) for d in (binary, soft))
            print(f"σ {sigma:.3g}, {name}: {change(before, after)}", flush=True)


if __name__ == "__main__":
    main()
