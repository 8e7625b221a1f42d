"""One step of fine-tuning against the matrix products it contains, and the sparse way against the dense one.

    python benchmarks/finetuning_step.py [--outdir runs/finetuning] [--side 28] [--batch 64] [--images 2000] [--patch 5]

Run it alone. All times are processor-bound and of one run; the best of a few each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from timing import seconds

from fpmc.core.precision import Squares
from fpmc.core.sources import Source
from fpmc.engine.gradients import Fixed, dense_gradients, loss_and_gradients, route
from fpmc.images import ImageSet

SIGMA = 1.0


def products(estimators: int, dimension: int, images: int, batch: int) -> Callable[[], None]:
    """Logits, means, a and ∂q of a batch: the same shapes and the same layouts as in a step."""
    x, pulled = torch.rand(images, dimension), torch.rand(estimators, images)
    q, out = torch.rand(estimators, dimension), torch.zeros(estimators, dimension)

    def run() -> None:
        for _ in range(batch):
            _ = q @ x.T
            _ = pulled @ x
            _ = q @ x.T
            out.addmm_(pulled, x)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/finetuning"))
    parser.add_argument("--side", type=int, default=28)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--patch", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    side, batch, repeats = options.side, options.batch, options.repeats
    random = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(options.images, 1, side + 4, side + 4, generator=random), 5, 1)
    images = ImageSet((127.5 + 400 * smooth).clip(0, 255).byte())
    z = images.scaled(slice(batch)) + SIGMA * torch.randn(batch, 1, side, side, generator=random)
    target, source = images.scaled(slice(batch)), Source(images)

    soft = torch.rand(side * side, 1, side, side, generator=random) + 0.01     # as many estimators as pixels
    patches = Squares(options.patch, side, side, inside=True).dense()
    nothing = Fixed(torch.zeros_like(z), torch.zeros(1, side, side))
    way = route(patches, patches, len(source), 1)
    found = {
        "threads": torch.get_num_threads(), "side": side, "batch": batch, "images": options.images,
        "products": seconds(products(side * side, side * side, options.images, batch), repeats),
        "step": seconds(lambda: loss_and_gradients(z, target, SIGMA, soft, soft, source), repeats),
        "patch": options.patch, "estimators": len(patches), "takes_sparse": way.takes_sparse,
        "dense": seconds(
            lambda: dense_gradients(z, target, SIGMA, patches, patches, source, nothing, ("q", "r"), 1 << 30), repeats
        ),
        "sparse": seconds(lambda: loss_and_gradients(z, target, SIGMA, patches, patches, source), repeats),
    }
    found["step_over_products"] = found["step"] / found["products"]
    found["dense_over_sparse"] = found["dense"] / found["sparse"]
    options.outdir.mkdir(parents=True, exist_ok=True)
    (options.outdir / "finetuning.json").write_text(json.dumps(found, indent=1))
    print(f"L = d = {side * side}, batch {batch}, {options.images} images: a step takes {found['step']:.3g} s, "
          f"its four products {found['products']:.3g} s, ratio {found['step_over_products']:.2f}")
    print(f"{len(patches)} squares of {options.patch}: dense {found['dense']:.3g} s, sparse {found['sparse']:.3g} s, "
          f"{found['dense_over_sparse']:.1f} times cheaper")


if __name__ == "__main__":
    main()
