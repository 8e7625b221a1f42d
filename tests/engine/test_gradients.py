"""The closed-form gradients of fine-tuning equal autograd through the float64 reference (Eq. "obj")."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fpmc import reference
from fpmc.engine.gradients import loss_and_gradients
from fpmc.images import ImageSet
from fpmc.precision import Squares
from fpmc.response import one_hot, pixel
from fpmc.sources import Source

CHANNELS, HEIGHT, WIDTH = 3, 5, 4
KINDS = {
    "soft": lambda r: (_soft(r, 7, 1), _soft(r, 7, 1)),
    "soft per channel": lambda r: (_soft(r, 7, CHANNELS), _soft(r, 7, CHANNELS)),
    "q per channel": lambda r: (_soft(r, 7, CHANNELS), _soft(r, 7, 1)),
    "r per channel": lambda r: (_soft(r, 7, 1), _soft(r, 7, CHANNELS)),
    "ls": lambda r: (Squares(3, HEIGHT, WIDTH).dense() + 1e-3, pixel(HEIGHT, WIDTH).dense() + 1e-3),
    "pspc": lambda r: (Squares(2, HEIGHT, WIDTH, inside=True).dense(),) * 2,
    "one-hot": lambda r: (_soft(r, 60, CHANNELS), one_hot(CHANNELS, HEIGHT, WIDTH).dense()),
    "one estimator": lambda r: (_soft(r, 1, 1), _soft(r, 1, 1)),
}
SOURCES = {
    "all": lambda images: Source(images),
    "left out": lambda images: Source(images).without([0, 1, 2]),
    "monte carlo": lambda images: Source(images).without([0, 1, 2]).subset(torch.tensor([3, 9, 11, 5, 20, 21])),
    "weighted": lambda images: Source(images, torch.linspace(-2, 2, len(images))),
}


def _soft(random: torch.Generator, length: int, channels: int) -> Tensor:
    return torch.randn(length, channels, HEIGHT, WIDTH, generator=random).exp()


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_autograd(kind: str, source: str, sigma: float) -> None:
    random = torch.Generator().manual_seed(1)
    values = 127.5 + 80 * torch.randn(25, 1, 1, 1, generator=random) / 2
    values = values + 40 * torch.randn(25, CHANNELS, HEIGHT, WIDTH, generator=random)
    images = ImageSet(values.clip(0, 255).byte())
    chosen = SOURCES[source](images)
    q, r = (t.double().requires_grad_() for t in KINDS[kind](random))
    z = (images.scaled(slice(4)) + sigma * torch.randn(4, *images.shape, generator=random)).double()
    target = torch.randn(z.shape, generator=random).double()
    x = torch.cat([part.scaled(dtype=torch.float64) for part in chosen.parts])
    truth = (reference.denoise(z, sigma, q, r, x, chosen.log_weights) - target).square().mean()
    truths = torch.autograd.grad(truth, (q, r))

    for memory in (1 << 28, 20_000):                    # posteriors kept, and computed again in small chunks
        found = loss_and_gradients(z, target, sigma, q.detach(), r.detach(), chosen, memory=memory)
        assert abs(found.loss - truth.item()) < 1e-10
        for ours, exact in zip((found.q, found.r), truths):
            assert ours is not None
            assert (ours - exact).abs().max() <= 1e-8 * exact.abs().max() + 1e-15
        single = loss_and_gradients(
            z.float(), target.float(), sigma, q.detach().float(), r.detach().float(), chosen, memory=memory
        )
        for ours, exact in zip((single.q, single.r), truths):
            assert ours is not None
            assert (ours - exact).norm() <= 1e-3 * exact.norm() + 1e-6


def test_only_what_is_learned_is_computed() -> None:
    images = ImageSet(torch.arange(180, dtype=torch.uint8).view(3, CHANNELS, HEIGHT, WIDTH))
    q = r = torch.ones(2, 1, HEIGHT, WIDTH)
    z = images.scaled()
    assert loss_and_gradients(z, z, 1.0, q, r, Source(images), learn=("q",)).r is None
    assert loss_and_gradients(z, z, 1.0, q, r, Source(images), learn=("r",)).q is None
