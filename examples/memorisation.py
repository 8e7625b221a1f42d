"""The optimal denoiser gives training images back; a collection of local ones does not (Section 2.1).

    python examples/memorisation.py --images 1000 --seeds 4
"""

from __future__ import annotations

from pathlib import Path

import tyro

import fpmc
from fpmc.metrics import nearest
from fpmc.report.grid import image_grid
from fpmc.report.table import plain


def main(
    images: int = 3000,                                 # training images
    seeds: int = 8,                                     # samples of each denoiser
    outdir: Path = Path("runs/examples"),               # where memorisation.png goes
) -> None:
    data = fpmc.load_images("fashion").subset(slice(images))
    rows, pictures = [], {}
    for denoiser in (fpmc.presets.optimal(data), fpmc.presets.pspc_square(data), fpmc.presets.wiener(data)):
        samples = fpmc.sample(denoiser, seeds=range(seeds)).images
        found = nearest(samples, data)
        copies = int((found.distance < 1 / 127.5).sum())    # within one grey level
        rows.append((denoiser.name, f"{found.distance.mean():.3f}", f"{copies} of {seeds}"))
        pictures[denoiser.name] = samples
        pictures[f"nearest to {denoiser.name}"] = data.scaled(found.index)
    print(plain(("denoiser", "distance to the nearest image", "copies"), rows))

    outdir.mkdir(parents=True, exist_ok=True)
    image_grid(pictures, columns=[str(seed) for seed in range(seeds)], corner="seed").save(outdir / "memorisation.png")
    print(outdir / "memorisation.png")


if __name__ == "__main__":
    tyro.cli(main)
