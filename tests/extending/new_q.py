"""A new Q: soft discs, q falling off with the distance from a pixel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.precision import Precision


@dataclass(frozen=True, eq=False)
class Discs(Precision, kind="discs"):
    """One disc around every pixel: q = sigmoid((radius − distance) / softness)."""

    height: int
    width: int
    radius: float
    softness: float

    def __len__(self) -> int:
        return self.height * self.width

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        y, x = torch.meshgrid(torch.arange(self.height), torch.arange(self.width), indexing="ij")
        away = torch.hypot((y.flatten()[:, None, None] - y).to(dtype), (x.flatten()[:, None, None] - x).to(dtype))
        return torch.sigmoid((self.radius - away) / self.softness)[:, None]
