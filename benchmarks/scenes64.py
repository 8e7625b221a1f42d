"""Samples at 64×64 in colour with the paper's tables for FFHQ: every method of Table 1 but ELS, from scenes made here.

    python benchmarks/scenes64.py [--images 10000] [--steps 40] [--batch 4] [--only ls wiener] [--outdir runs/scenes64]
        [--table docs/results/scenes64.csv]

Seconds per noisy image and call as the sampler asks, at every noise level, and the largest deviation from the float64
engine at these levels with the first images as source. Run it alone. A grid of the samples and results.json go to
--outdir; methods that are in it already are not sampled again. --table writes what the manual quotes, without the
first level, at which kernels are compiled.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from scenes import scenes
from timing import peak
from torch import Tensor

from fpmc import presets, sample
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.images import ImageSet
from fpmc.report.grid import image_grid
from fpmc.sampling import EVALUATION_FROM, levels_of
from fpmc.study.bench import measure_machine
from fpmc.study.methods import LS, OPTIMAL, PSPC_FLEX, PSPC_SQUARE, WIENER, lukoianov

METHODS: dict[str, Callable[[ImageSet], FPMC]] = {
    "optimal": presets.optimal,
    "wiener": presets.wiener,
    "ls": lambda images: presets.ls(images, schedule="ffhq"),
    "pspc_square": lambda images: presets.pspc_square(images, schedule="ffhq"),
    "pspc_flex": lambda images: presets.pspc_flex(images, schedule="ffhq", maps="wiener"),
    "lukoianov": presets.lukoianov,
}
CALLED = {row.preset: row.label for row in (OPTIMAL, WIENER, LS, PSPC_SQUARE, PSPC_FLEX, lukoianov(0.05))}


def sampled(denoiser: FPMC, steps: int, batch: int) -> tuple[Tensor, dict[str, Any]]:
    """Samples, and seconds per noisy image and call by noise level, without the time to make masks."""
    calls: defaultdict[float, list[float]] = defaultdict(list)

    def timed(z: Tensor, sigma: float) -> Tensor:
        denoiser.at(sigma)
        began = time.perf_counter()
        x0 = denoiser(z, sigma)
        calls[sigma].append((time.perf_counter() - began) / len(z))
        return x0

    out = sample(timed, seeds=range(EVALUATION_FROM, EVALUATION_FROM + batch), steps=steps, shape=denoiser.shape)
    best = [min(each) for each in calls.values()]       # a level is asked for twice; the first call lays out
    return out.images, {
        "seconds by level": {f"{level:.4g}": min(each) for level, each in calls.items()},
        "seconds": statistics.median(best), "slowest level": max(best), "sample seconds": out.seconds,
        "peak GiB": peak(),
    }


def deviation(denoiser: FPMC, few: ImageSet, levels: list[float], clean: Tensor) -> dict[str, float]:
    """The largest deviation from float64 at every level, at one noisy image: the same Q and R over a few images."""
    noise, found, source = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)), {}, Source(few)
    for sigma in levels:
        z, collection = clean + sigma * noise, denoiser.at(sigma)
        if all(isinstance(group.source, Source) for group in collection.groups):
            collection = collection.changed(lambda _: source)
        off = collection.denoise(z, sigma) - collection.denoise(z.double(), sigma)
        found[f"{sigma:.4g}"] = off.abs().max().item()
    return found


def tabulate(path: Path, found: dict[str, Any], names: list[str], batch: int) -> None:
    """A row for each method: seconds at the median, the least and the most of its levels, the deviation, a sample."""
    headers = ["method", "s/image (median)", "least", "most", "products", "largest deviation", "s/sample"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(headers)
        for name in names:
            row = found[name]
            _, *levels = row["seconds by level"].values()
            middle, least, most = statistics.median(levels), min(levels), max(levels)
            products = middle / found["machine"]["gemm_seconds"]
            times = [f"{seconds:.3f}" for seconds in (middle, least, most)]
            others = [f"{products:.2f}", f"{row['largest deviation']:.1e}", f"{row['sample seconds'] / batch:.1f}"]
            writer.writerow([CALLED[name], *times, *others])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--checked", type=int, default=64, help="images of the comparison with float64")
    parser.add_argument("--only", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--outdir", type=Path, default=Path("runs/scenes64"))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    options.outdir.mkdir(parents=True, exist_ok=True)
    results = options.outdir / "results.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    every = scenes(options.images + 1, 64)
    images, few, clean = every.subset(slice(1, None)), every.subset(slice(1, 1 + options.checked)), every.scaled([0])
    if "machine" not in found:
        found["machine"] = asdict(measure_machine())
    levels = [sigma for sigma in levels_of(options.steps) if sigma > 0]
    for name in options.only:
        file = options.outdir / f"{name}.pt"
        if not file.exists():
            denoiser = METHODS[name](images)
            pictures, found[name] = sampled(denoiser, options.steps, options.batch)
            found[name]["gemms"] = found[name]["seconds"] / found["machine"]["gemm_seconds"]
            found[name]["deviation by level"] = deviation(denoiser, few, levels, clean)
            found[name]["largest deviation"] = max(found[name]["deviation by level"].values())
            torch.save(pictures, file)
            results.write_text(json.dumps(found, indent=1))
        row = found[name]
        print(
            f"{name:12} {row['seconds']:7.3f} s/image ({row['gemms']:.2f} GEMMs), "
            f"slowest level {row['slowest level']:.3f}, "
            f"{options.batch} samples {row['sample seconds']:.0f} s, deviation {row['largest deviation']:.1e}, "
            f"peak {row['peak GiB']:.2f} GiB", flush=True,
        )
    if options.table:
        tabulate(options.table, found, options.only, options.batch)
    rows = {"training images": images.scaled(slice(options.batch))}
    rows |= {name: torch.load(options.outdir / f"{name}.pt", weights_only=True).float() for name in options.only}
    image_grid(rows).save(options.outdir / "grid.png")


if __name__ == "__main__":
    main()
