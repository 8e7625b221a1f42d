"""A new R: every estimator answers for its pixel and, less, for the four beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.precision import Precision
from fpmc.core.response import Response, Responses


@dataclass(frozen=True, eq=False)
class Crosses(Response, kind="crosses"):
    """r_ℓ is 1 at pixel ℓ and `beside` at its neighbours."""

    height: int
    width: int
    beside: float

    def __len__(self) -> int:
        return self.height * self.width

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        y, x = torch.meshgrid(torch.arange(self.height), torch.arange(self.width), indexing="ij")
        away = (y.flatten()[:, None, None] - y).abs() + (x.flatten()[:, None, None] - x).abs()
        return ((away == 0).to(dtype) + self.beside * (away == 1).to(dtype))[:, None]

    def total(self) -> Tensor:
        return self.dense(torch.float64).sum(0)

    def merge(self, precision: Precision, representative: Tensor) -> Response:
        return Responses(self.dense(torch.float64)).merge(precision, representative)
