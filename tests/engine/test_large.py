"""Large images: logits of thousands of nats keep the digits in which training images differ."""

from __future__ import annotations

import pytest
import torch

from fpmc import presets
from fpmc.images import ImageSet

pytestmark = pytest.mark.usefixtures("one_thread")


def alike(count: int) -> ImageSet:
    """Pictures of 3×64×64 that differ little, so that much noise leaves many of them in a posterior."""
    random = torch.Generator().manual_seed(0)
    common = torch.nn.functional.interpolate(torch.randn(1, 3, 8, 8, generator=random), (64, 64), mode="bilinear")
    own = torch.nn.functional.interpolate(torch.randn(count, 3, 4, 4, generator=random), (64, 64), mode="bilinear")
    return ImageSet((127.5 + 60 * common + 25 * own).clip(0, 255).byte())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sigma", [1.4, 4.4, 9.7, 20.0, 80.0])
@pytest.mark.parametrize("method", ["optimal", "ls", "pspc_square"])
def test_float32_is_within_1e4_of_float64_at_64_pixels(method: str, sigma: float, batch: int) -> None:
    images = alike(40)
    options = {} if method == "optimal" else {"schedule": 61}
    denoiser = getattr(presets, method)(images.subset(slice(8, None)), **options)
    z = images.scaled(slice(batch)) + sigma * torch.randn(batch, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    truth = denoiser(z.double(), sigma)
    assert (denoiser(z, sigma) - truth).abs().max() < 1e-4
    assert (denoiser.using(backend="numba")(z, sigma) - truth).abs().max() < 1e-4
