"""Measure what the operations of the engine cost: writes src/fpmc/engine/costs.json, by which plans compare offers.

    python benchmarks/costs.py [--images 4000] [--write]

One thread, processor time, so that other work on the machine matters little. Every kernel runs problems of several
shapes; the nanoseconds of each kind of operation are the non-negative least-squares fit of relative errors.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls

from fpmc import presets
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions, Squares
from fpmc.core.response import Responses, SameAsQ, pixel
from fpmc.core.sources import Source
from fpmc.data import load_images
from fpmc.engine import Call, cost, make_plan
from fpmc.engine.gradients import loss_and_gradients
from fpmc.images import ImageSet

COSTS = Path(cost.__file__).with_name("costs.json")


def timed(work: Callable[[], object], least: float = 0.3) -> float:
    """Processor seconds of one call, the best of a few."""
    work()
    best, spent = np.inf, 0.0
    while spent < least:
        began = time.process_time()
        work()
        took = time.process_time() - began
        best, spent = min(best, took), spent + took
    return best


def discs(shape: tuple[int, int, int], radius: float, soft: bool = False) -> Precisions:
    _, height, width = shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    distance = (y.flatten()[:, None, None] - y) ** 2 + (x.flatten()[:, None, None] - x) ** 2
    return Precisions(torch.exp(-distance / radius**2)[:, None] if soft else (distance <= radius**2)[:, None])


def problems(images: ImageSet) -> Iterator[tuple[str, Collection, float]]:
    """A kernel, a collection and a noise level."""
    shape, own = images.shape, pixel(*images.shape[1:])
    few = images.subset(slice(0, max(32, len(images) // 60)))
    for sigma in (0.3, 3.0):
        yield "full", presets.optimal(images).at(sigma), sigma
        yield "direct", presets.optimal(images).at(sigma), sigma
        yield "expanded", presets.optimal(images).at(sigma), sigma
        for size in (3, 9, 21):
            yield "boxes", presets.ls(images, schedule=size).at(sigma), sigma
            yield "boxes", presets.pspc_square(images, schedule=size).at(sigma), sigma
        yield "boxes", presets.pspc_square(images, schedule=9, stride=3).at(sigma), sigma
        for radius in (1.5, 3.0, 5.0):
            mask = discs(shape, radius)
            yield "rows", Collection(mask, own, images), sigma
            yield "rows", Collection(mask, SameAsQ(mask), images), sigma
        soft, wide = (discs(shape, radius, soft=True) for radius in (2.0, 8.0))
        for kept in (soft, wide):
            yield "rows", Collection(kept, own, images), sigma
        for mixed in (own, SameAsQ(wide)):
            yield "mirrors", Collection(wide, mixed, images), sigma
        for kernel in ("direct", "matrix"):
            yield kernel, Collection(soft, Responses(soft.values.sqrt()), images), sigma
        yield "direct", Collection(Squares(5, *shape[1:]), own, images), sigma
        yield "direct", Collection(soft, own, images), sigma
    for size, sigma in ((3, 0.2), (9, 1.09), (15, 2.0), (19, 3.26)):
        for kernel in ("shifts", "block shifts", "running shifts"):
            yield kernel, presets.els(few, schedule=size).at(sigma), sigma
    for size, sigma in ((3, 0.023), (3, 0.14), (3, 0.296), (5, 0.296)):
        yield "clusters", presets.els(images, schedule=size).at(sigma), sigma
    yield "affine", presets.wiener(images).at(1.0), 1.0


def rows(images: ImageSet, batch: int) -> Iterator[tuple[str, dict[str, float], float]]:
    """What ran, its operations, and its seconds per noisy image."""
    random = torch.Generator().manual_seed(0)
    a = torch.rand(1024, 1024)
    yield "product", {"product": 1024.0**3}, timed(lambda: a @ a)
    for kernel, collection, sigma in problems(images):
        z = images.scaled(slice(batch)) + sigma * torch.randn(batch, *images.shape, generator=random)
        backend = "torch" if kernel in ("direct", "expanded", "matrix", "affine") else "numba"
        settings = FPMC(collection).using(kernels=(kernel,), backend=backend, threads=1).settings
        plan = make_plan(collection.groups, Call.of(z, sigma), settings)
        seconds = timed(lambda c=collection, z=z, s=sigma, o=settings: c.denoise(z, s, o)) / batch
        yield f"{kernel}, {plan.steps[0].respond}", dict(plan.steps[0].counts), seconds
    tiny = images.subset(slice(0, 500))
    z = images.scaled(slice(batch)) + torch.randn(batch, *images.shape, generator=random)
    for radius in (2.0, 4.0):
        q = discs(images.shape, radius).dense()
        entries = (2.0 + 1 + images.shape[0]) * q.count_nonzero().item() * len(tiny)
        seconds = timed(lambda q=q, z=z: loss_and_gradients(z, z, 1.0, q, q, Source(tiny), memory=1 << 33)) / batch
        yield "gradients", {"tile.entry": entries}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="replace costs.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load_images(options.data).subset(slice(options.images))
    found = list(rows(images, options.batch))
    kinds = sorted({kind for _, counts, _ in found for kind in counts} | {"solve64"})
    system = np.array([[counts.get(kind, 0.0) / seconds for kind in kinds] for _, counts, seconds in found])
    scale = system.max(0, initial=1e-30)
    nanoseconds = dict(zip(kinds, (1e9 * nnls(system / scale, np.ones(len(system)))[0] / scale).tolist()))
    nanoseconds["solve64"] = max(nanoseconds["solve64"], 5 * nanoseconds["product64"])
    for name, counts, seconds in found:
        predicted = 1e-9 * sum(nanoseconds[kind] * count for kind, count in counts.items())
        print(f"{name:20} {1e3 * seconds:9.3f} ms, predicted {predicted / seconds:5.2f} of it")
    print(json.dumps(nanoseconds, indent=1))
    if options.write:
        rounded = {kind: float(f"{value:.3g}") for kind, value in nanoseconds.items()}
        found = json.loads(COSTS.read_text())
        found["cpu"] |= {"note": "by benchmarks/costs.py", "nanoseconds": rounded}
        COSTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
