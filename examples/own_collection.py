"""A denoiser of your own: groups of estimators with different Q, R and V in one collection (Section 3).

Small squares know edges, large ones know where they belong, the Gaussian fills in what no image has. Their answers are
averaged with the weights r, and the result is checked against the equations in float64.

    python examples/own_collection.py --images 500 --count 16
"""

from __future__ import annotations

import torch
import tyro

import fpmc
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Full, Squares
from fpmc.core.response import Responses, SameAsQ


def main(
    images: int = 3000,                                 # training images
    count: int = 64,                                    # noisy test images
    sigma: float = 1.92,
) -> None:
    data = fpmc.load_images("fashion").subset(slice(images))
    source = fpmc.Source(data)
    _, height, width = data.shape

    def squares(size: int) -> fpmc.Group:
        q = Squares(size, height, width, inside=True)   # all squares of this size, each answering where it asks
        return fpmc.Group(q, SameAsQ(q), source)

    whole = Full(height, width)
    linear = fpmc.Group(whole, Responses(torch.full((1, 1, height, width), 20.0)), fit_gaussian(source))
    small, large = squares(11), squares(19)
    choices = {"11×11": [small], "19×19": [large], "both": [small, large], "both and N(μ, Σ)": [small, large, linear]}

    x = fpmc.load_images("fashion", split="test").scaled(range(count))
    z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    for name, groups in choices.items():
        denoiser = fpmc.FPMC(fpmc.Collection.of(*groups), name=name)
        error = (denoiser(z, sigma) - x).square().mean()
        print(f"{name:18} {len(denoiser.at(sigma)):4} estimators, mean squared error {error:.4f}")

    few = data.subset(slice(50))                        # the oracle holds every difference z − x at once
    q = torch.cat([small.q.dense(), large.q.dense()])
    exact = fpmc.reference.denoise(z[:2], sigma, q, q, few.scaled(dtype=torch.float64))
    mixed = fpmc.FPMC(fpmc.Collection(q, q, few))       # or as plain tensors (L, 1, H, W)
    print(f"largest deviation from float64: {(mixed(z[:2], sigma) - exact).abs().max():.0e}")


if __name__ == "__main__":
    tyro.cli(main)
