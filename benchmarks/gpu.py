"""What the cost model predicts for an A100: docs/results/gpu.csv. Nothing of it is measured, and no GPU is needed.

    python benchmarks/gpu.py [--images 50000] [--write]

`fpmc bench --device cuda` measures.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from fpmc import presets
from fpmc.data import load_images
from fpmc.engine import Call, cost
from fpmc.images import ImageSet
from fpmc.report.table import plain

RESULT = Path(__file__).parents[1] / "docs" / "results" / "gpu.csv"
METHODS = ("optimal", "ls", "pspc_square", "pspc_flex", "lukoianov")
SIGMAS = (1.09, 0.296)
BATCHES = (8, 64)
HEADERS = ("method", "σ", *(f"{what} (batch {batch})" for batch in BATCHES for what in ("kernel", "ms per image")))


def rows(images: ImageSet) -> Iterator[tuple[str, ...]]:
    for method in METHODS:
        denoiser = getattr(presets, method)(images)
        for sigma in SIGMAS:
            cells = []
            for batch in BATCHES:
                plan = denoiser.at(sigma).plan(Call(sigma, batch, device="cuda"), denoiser.settings)
                cells += [" + ".join(step.kernel for step in plan.steps), f"{1e3 * plan.seconds / batch:.2g}"]
            yield denoiser.name, f"{sigma:g}", *cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--write", action="store_true", help="replace docs/results/gpu.csv")
    options = parser.parse_args()
    found = list(rows(load_images("cifar10").subset(slice(options.images))))
    print(f"predicted for {cost.of('cuda').machine}: {cost.of('cuda').note}")
    print(plain(HEADERS, found))
    if options.write:
        with open(RESULT, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADERS, *found])


if __name__ == "__main__":
    main()
