"""A new reduction: the variance of the posterior at every output value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fpmc.engine.reduce import Part, Reduction
from fpmc.engine.reduce.reduction import Found


class Variance(Reduction):
    """Σ_n w_n(j) x_n(j)² − (Σ_n w_n(j) x_n(j))², of collections of images."""

    wants = "weights"

    def sums(self, part: Part) -> Tensor:
        return torch.stack([part.wx.sum(1), (part.wx * part.x).sum(1)])

    def finish(self, found: Sequence[Found], total: Tensor) -> Tensor:
        mean, square = torch.stack([torch.as_tensor(each.sums) for each in found]).sum(0)
        return square - mean**2
