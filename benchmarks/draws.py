"""How many draws sensitivity maps need: PSPC-Flex with maps of more and more of them.

    python benchmarks/draws.py [--data fashion] [--sigmas 0.585 0.14] [--draws 3 6 12 24] [--keep FOLDER]

For each number of draws the relative standard error of the maps, the pixels of a mask on average, and the mean squared
error to DDPM++ on noisy test images, ± standard error; beside it masks from the Wiener filter's sensitivities, which
have no noise, and PSPC-Square. With a folder, draws are kept there and resumed from.
"""

from __future__ import annotations

import argparse

import torch

from fpmc import FPMC, load_network, presets
from fpmc.data import load_images
from fpmc.learn.calibrate import forward_points
from fpmc.metrics import standard_error
from fpmc.networks import sensitivity_maps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--sigmas", type=float, nargs="+", default=(0.585, 0.14))
    parser.add_argument("--draws", type=int, nargs="+", default=(3, 6, 12, 24))
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--keep", help="folder of draws")
    options = parser.parse_args()
    images, held_out = load_images(options.data), load_images(options.data, split="test")
    network = load_network(f"{options.data}-ddpmpp")

    def show(name: str, denoiser: FPMC, z: torch.Tensor, sigma: float) -> None:
        q = denoiser.at(sigma).groups[0].q
        with torch.no_grad():
            errors = (denoiser(z, sigma) - network(z, sigma)).square().mean((1, 2, 3))
        pixels, error = q.entries / len(q), f"{errors.mean():.6f} ± {standard_error(errors):.6f}"
        print(f"  {name:28}{pixels:7.1f} pixels {error}", flush=True)

    for sigma in options.sigmas:
        print(f"σ {sigma:g}")
        z = forward_points(held_out, sigma, options.count)
        show("PSPC-Square", presets.pspc_square(images), z, sigma)
        show("Wiener maps", presets.pspc_flex(images, maps="wiener"), z, sigma)
        for draws in sorted(options.draws):
            maps = sensitivity_maps(network, images, [sigma], draws=draws, checkpoint=options.keep)
            name = f"{maps.draws[sigma]} draws, error {maps.errors[sigma]:.2f}"
            show(name, presets.pspc_flex(images, maps=maps), z, sigma)


if __name__ == "__main__":
    main()
