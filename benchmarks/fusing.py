"""What fused operations of torch save, with a CPU in place of a GPU: ways to compute the same, one after the other.

    python benchmarks/fusing.py [--images 2000] [--compile]

One thread, processor time, the best of a few rounds, in which all ways take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc import presets
from fpmc.core.precision import Squares
from fpmc.data import load_images
from fpmc.images import ImageSet

Way = Callable[[], object]
BATCH, FEW = 8, 500


def compare(what: str, ways: dict[str, Way], rounds: int = 4) -> None:
    best = dict.fromkeys(ways, float("inf"))
    for way in ways.values():
        way()                                           # compile, lay out
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            best[name] = min(best[name], time.process_time() - began)
    print(f"{what}: " + ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in best.items()), flush=True)


def squared(z: Tensor, x: Tensor) -> Tensor:
    return (z[:, None] - x).square().sum(2)


def step(z: Tensor, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """A chunk of LS."""
    logits = (-0.5 * (rows @ squared(z, x) @ columns.T)).flatten(2)
    weights = torch.exp(logits - logits.amax(1, keepdim=True))
    return torch.einsum("bnp,ncp->bcp", weights, x.flatten(2))


def operations(images: ImageSet, compiled: bool) -> None:
    x, z = images.scaled(slice(FEW)), images.scaled(slice(BATCH))
    channels, height, width = images.shape
    weights, owner = torch.rand(BATCH, FEW, height * width), torch.arange(height * width).view(1, height, width)
    compare("weights times images", {
        "written out": lambda: (weights[:, :, owner.expand(channels, -1, -1)] * x).sum(1),
        "a product": lambda: torch.einsum("bnp,ncp->bcp", weights, x.flatten(2)),
    })
    squares = squared(z, x)
    for size in (3, 15):
        rows, columns = (band.float() for band in Squares(size, height, width).bands())
        compare(f"box sums, s = {size}", {
            "products": lambda a=rows, b=columns: a @ squares @ b.T,
            "pooling": lambda s=size: F.avg_pool2d(squares.flatten(0, 1)[:, None], s, 1, s // 2, divisor_override=1),
        })
    if compiled:
        rows, columns = (band.float() for band in Squares(3, height, width).bands())
        quick, quick_step = torch.compile(squared), torch.compile(step)
        compare("squared differences", {"eager": lambda: squared(z, x), "compiled": lambda: quick(z, x)})
        compare("a chunk of LS", {
            "eager": lambda: step(z, x, rows, columns), "compiled": lambda: quick_step(z, x, rows, columns)
        })


def kernels(images: ImageSet) -> None:
    random = torch.Generator().manual_seed(0)
    for name, other, sigmas in (
        ("optimal", "double", (0.3,)), ("ls", "attention", (0.3, 1.09)), ("pspc_square", "attention", (0.3, 1.09))
    ):
        for sigma in sigmas:
            z = images.scaled(slice(BATCH)) + sigma * torch.randn(BATCH, *images.shape, generator=random)
            made = {k: getattr(presets, name)(images).using(backend="torch", kernels=(k,)) for k in ("direct", other)}
            compare(f"{name} at {sigma:g}, a call", {k: lambda d=d, z=z, s=sigma: d(z, s) for k, d in made.items()}, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--compile", action="store_true", help="torch.compile, too, which needs a compiler")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load_images("cifar10").subset(slice(options.images))
    operations(images, options.compile)
    kernels(images)


if __name__ == "__main__":
    main()
