"""What else is worth a place in a multi-scale collection: temperatures, surroundings, masks, images as Gaussians.

    python benchmarks/multiscale_trials.py [--data fashion] [--count 128] [--sigmas 0.585 1.09 1.92 3.26 5.3]

Every trial adds estimators to squares of five sizes, the optimal denoiser and the Wiener filter. Weights are fitted on
seven eighths of the noisy test images and judged on the last, in turn: fitted to DDPM++ and judged by the distance to
DDPM++ and to NCSN++, fitted to clean images and judged by the distance to NCSN++ and to clean images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fpmc import Collection, Source, load_network, presets
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Squares
from fpmc.data import load_images
from fpmc.images import ImageSet
from fpmc.learn.calibrate import forward_points
from fpmc.learn.fit import FOLDS, least_squares
from fpmc.methods.multiscale import AROUND

BATCH = 16
TEMPERATURES = (1.25, 1.5, 2.0, 3.0)
SHARES = (0.05, 0.1, 0.2, 0.4)                          # of the data's covariance that each image has
JUDGED = (("network", "network"), ("network", "reference"), ("clean", "reference"), ("clean", "clean"))


class Cloud:
    """Images as Gaussians: x_n drawn towards the mean, with a share of the data's covariance."""

    def __init__(self, source: Source, images: ImageSet) -> None:
        gaussian = fit_gaussian(source)
        self.mean, self.basis, self.values = gaussian.mean.flatten(), gaussian.eigenvectors, gaussian.eigenvalues
        self.images = (images.scaled(dtype=torch.float64).flatten(1) - self.mean) @ self.basis

    def __call__(self, z: Tensor, sigma: float, share: float) -> Tensor:
        own, centres = share * self.values, (1 - share) ** 0.5 * self.images
        at = (z.double().flatten(1) - self.mean) @ self.basis
        scale = (own + sigma**2).rsqrt()
        posterior = (-0.5 * torch.cdist(at * scale, centres * scale).square()).softmax(1)
        centre = posterior @ centres
        answer = centre + own / (own + sigma**2) * (at - centre)
        return (self.mean + answer @ self.basis.T).view_as(z).float()


def trials(answers: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Names of trials, and the estimators that take part."""
    base = [name for name in answers if name.startswith("base")]

    def beside(*kinds: str) -> list[str]:
        return base + [name for name in answers if name.startswith(kinds)]

    yield "squares, optimal, Wiener", base
    for temperature in TEMPERATURES:
        yield f"+ whole images, T = {temperature:g}", beside(f"whole {temperature:g}")
    yield "+ whole images, all T", beside("whole")
    yield "+ squares, T = 1.5", beside("square")
    yield "+ squares with surroundings", beside("around")
    yield "+ these and whole images", beside("around", "whole")
    yield "+ images with a covariance", beside("cloud")
    yield "+ PSPC-Flex, five τ", beside("flex")
    yield "+ Lukoianov, five τ", beside("lukoianov")
    yield "+ all of these", beside("whole", "square", "around", "cloud", "flex", "lukoianov")


def judge(table: np.ndarray, members: Sequence[int], target: int, judge: int) -> np.ndarray:
    """Error of each noisy image, by weights that were fitted on others."""
    fold = np.arange(len(table)) % FOLDS
    errors = np.empty(len(table))
    for part in range(FOLDS):
        mean = table[fold != part].mean(0)
        signed = np.zeros(table.shape[1])
        signed[list(members)] = least_squares(mean[np.ix_(members, members)], mean[members, target])
        signed[judge] -= 1
        errors[fold == part] = table[fold == part] @ signed @ signed
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--sigmas", type=float, nargs="+", default=(0.585, 1.09, 1.92, 3.26, 5.3))
    options = parser.parse_args()
    images, held_out = load_images(options.data), load_images(options.data, split="test")
    source, clean = Source(images), held_out.scaled(slice(options.count))
    network, reference = (load_network(f"{options.data}-{arch}") for arch in ("ddpmpp", "ncsnpp"))
    base = presets.multiscale(source, temperatures=(), around=())
    squares = presets.multiscale(source, temperatures=(), around=(), gaussian=False)
    masks = {shape: presets.multiscale(source, shape=shape, temperatures=(), gaussian=False)
             for shape in ("flex", "lukoianov")}
    whole = presets.multiscale(source, around=AROUND).at(1.0).groups
    surrounded = Collection.of(*(group for group in whole if isinstance(group.q, Squares) and group.q.around))
    optimal, cloud = presets.optimal(source), Cloud(source, images)

    def ask(z: Tensor, sigma: float) -> dict[str, Tensor]:
        found = dict(zip((f"base {k}" for k in range(99)), base.at(sigma).answers(z, sigma)))
        for temperature in TEMPERATURES:
            found[f"whole {temperature:g}"] = optimal.at(sigma).denoise(z, temperature * sigma)
        found |= zip((f"square {k}" for k in range(99)), squares.at(sigma).answers(z, 1.5 * sigma)[:-1])
        found |= zip((f"around {k}" for k in range(99)), surrounded.answers(z, sigma))
        found |= {f"cloud {share:g}": cloud(z, sigma, share) for share in SHARES}
        for shape, each in masks.items():
            found |= zip((f"{shape} {k}" for k in range(99)), each.at(sigma).answers(z, sigma)[:-1])
        return found | {"network": network(z, sigma), "reference": reference(z, sigma)}

    for sigma in options.sigmas:
        tables = []
        with torch.no_grad():
            for z, x in zip(forward_points(held_out, sigma, options.count).split(BATCH), clean.split(BATCH)):
                answers = ask(z, sigma) | {"clean": x}
                entries = torch.stack(list(answers.values())).double().flatten(2)
                tables.append(torch.einsum("gbd,kbd->bgk", entries, entries) / entries.shape[2])
        table, names = torch.cat(tables).numpy(), list(answers)
        print(f"σ {sigma:g}", *(f"{target} → {by}" for target, by in JUDGED), sep="  ")
        for name, members in trials(names):
            places = [names.index(member) for member in members]
            errors = [judge(table, places, names.index(target), names.index(by)) for target, by in JUDGED]
            print(f"  {name:28}", *(f"{e.mean():.5f} ± {e.std() / len(e) ** 0.5:.5f}" for e in errors), flush=True)


if __name__ == "__main__":
    main()
