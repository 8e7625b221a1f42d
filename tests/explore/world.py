"""Small images, and something that can be called like a network."""

from __future__ import annotations

import torch
from torch import Tensor

import fpmc

SIZE = 10


def smooth(count: int, size: int = SIZE, channels: int = 1, seed: int = 0, name: str = "clouds") -> fpmc.ImageSet:
    """Blurred noise with three classes."""
    random = torch.Generator().manual_seed(seed)
    rough = torch.randn(count, channels, 4, 4, generator=random)
    x = torch.nn.functional.interpolate(rough, size=(size, size), mode="bicubic")
    return fpmc.ImageSet((127.5 + 60 * x).clamp(0, 255).byte(), labels=torch.arange(count) % 3, name=name)


class Shrink:
    """Something that can be called like a network and holds no images."""

    name, shape = "shrink", (1, SIZE, SIZE)

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return z / (1 + torch.as_tensor(sigma) ** 2)
