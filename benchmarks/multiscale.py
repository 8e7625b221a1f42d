"""Six patch sizes together against the dearest of them alone.

    python benchmarks/multiscale.py [--outdir runs/multiscale] [--data cifar10] [--batch 8]

Run it alone. All times are of one run, the best of a few each; errors are against the float64 oracle on fewer images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from timing import seconds

from fpmc import FPMC, presets, reference
from fpmc.data import load_images
from fpmc.learn.fit import weigh

SIGMAS = (0.296, 1.09, 3.26)
SIZES = (3, 5, 8, 12, 20)                               # beside the whole image
CHECKED = 300                                           # images the oracle sees


def cost(denoiser: FPMC, z: torch.Tensor, sigma: float) -> float:
    """Seconds per noisy image."""
    return seconds(lambda: denoiser(z, sigma)) / len(z)


def truth(denoiser: FPMC, z: torch.Tensor, sigma: float) -> torch.Tensor:
    """The collection through the oracle; the Wiener filter's group is left out by the caller."""
    groups = denoiser.at(sigma).groups
    q = torch.cat([group.q.dense(torch.float64) for group in groups])
    r = torch.cat([group.response(torch.float64).expand(-1, *group.shape) for group in groups])
    x = groups[0].source.parts[0].scaled(dtype=torch.float64)  # pyright: ignore[reportAttributeAccessIssue]
    return reference.denoise(z.double(), sigma, q, r, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/multiscale"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    images, held_out = load_images(options.data), load_images(options.data, split="test")
    together = presets.multiscale(images, sizes=SIZES, gaussian=False, temperatures=(), around=())
    whole = presets.multiscale(images)
    groups = together.at(1.0).groups
    names = [f"{group.q.size if hasattr(group.q, 'size') else 'whole'}" for group in groups]
    few = presets.multiscale(images.subset(slice(CHECKED)), sizes=SIZES, gaussian=False, temperatures=(), around=())
    noise = torch.randn(options.batch, *images.shape, generator=torch.Generator().manual_seed(0))
    found = {}
    for sigma in SIGMAS:
        z = held_out.scaled(slice(options.batch)) + sigma * noise
        alone = {
            name: cost(FPMC(weigh(together.at(sigma), torch.eye(len(groups))[place])), z, sigma)
            for place, name in enumerate(names)
        }
        every = max(
            cost(presets.pspc_square(images, schedule=int(name)), z, sigma) for name in names if name != "whole"
        )
        both, default = cost(together, z, sigma), cost(whole, z, sigma)
        error = (few(z, sigma).double() - truth(few, z, sigma)).abs().max().item()
        found[sigma] = {
            "together": both, "with all that the preset has": default, "alone": alone, "dearest without stride": every,
            "ratio to the dearest": both / max(every, *alone.values()),
            "ratio to the sum": both / sum(alone.values()), "error": error,
        }
        print(f"σ {sigma}: {len(groups)} scales {both:.3f} s per image; alone " +
              ", ".join(f"{name} {value:.3f}" for name, value in alone.items()) +
              f"; dearest {every:.3f}; {both / max(every, *alone.values()):.2f} times the dearest, error {error:.1e}; "
              f"with all that the preset has {default:.3f} s")
    options.outdir.mkdir(parents=True, exist_ok=True)
    (options.outdir / "multiscale.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
