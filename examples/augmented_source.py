"""More images without more data: reflections, and an augmentation of your own, as part of the source (Section 4.3).

    python examples/augmented_source.py --images 500 --count 8
"""

from __future__ import annotations

from pathlib import Path

import torch
import tyro

import fpmc
from fpmc.augmentation import register, uniform
from fpmc.report.table import plain

SIGMAS = (3.26, 1.09, 0.296)


@register("gain", uniform(0.7, 1.3))                    # drawn for each copy
def gain(pixels: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (pixels * factor[:, None, None, None]).round().clamp(0, 255).byte()


def main(
    images: int = 2000,                                 # training images
    count: int = 32,                                    # noisy test images
    outdir: Path = Path("runs/examples"),               # where the denoiser is saved
) -> None:
    data = fpmc.load_images("fashion").subset(slice(images))
    x = fpmc.load_images("fashion", split="test").scaled(range(count))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    plain_source = fpmc.Source(data)
    sources = {"the images alone": plain_source}
    for kind in ("xflip", "translate", "yflip", "gain"):
        sources[f"and {kind}"] = plain_source | fpmc.augment(data, kind)

    rows = []
    for name, source in sources.items():
        denoiser = fpmc.presets.pspc_square(source)
        errors = [(denoiser(x + sigma * noise, sigma) - x).square().mean() for sigma in SIGMAS]
        rows.append((name, *(f"{error:.4f}" for error in errors)))
    print(plain(("mean squared error", *(f"σ = {sigma}" for sigma in SIGMAS)), rows))

    union = sources["and xflip"]
    print(union)
    print(union.without(data.ids[:10]))                 # the reflections of the ten go with them
    fpmc.presets.pspc_square(union).save_pretrained(outdir / "flipped")     # as a recipe; no image is written
    again = fpmc.FPMC.from_pretrained(outdir / "flipped", images=data)
    print(f"saved with its recipe and loaded: {again.at(1.09).groups[0].source}")


if __name__ == "__main__":
    tyro.cli(main)
