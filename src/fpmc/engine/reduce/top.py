"""Who made this pixel: the share of every image in a set of output values, and the weights of a few images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.gaussian import Gaussian
from fpmc.engine.reduce.reduction import Found, Part, Reduction


@dataclass(frozen=True)
class Shares(Reduction):
    """The share of each image: the mean of w_n(j) over the output values of `mask` (C or 1, H, W)."""

    mask: Tensor
    wants = "shares"
    by_image = True

    def pixels(self, total: Tensor) -> Tensor:
        """1 / (number of values · Σ r), 0 outside the mask: (C, H, W)."""
        inside = self.mask.to(total).expand_as(total)
        return inside / inside.sum() / total

    def finish(self, found: Sequence[Found], total: Tensor) -> tuple[list[Found], Tensor]:
        """Shares (B, N) of each step's source, and the share of Gaussian sources (B,)."""
        spoken = [each for each in found if each.state is not None]
        gaussian = total.new_zeros(())
        for each in found:
            for group in each.members:
                if isinstance(group.source, Gaussian):
                    gaussian = gaussian + (self.pixels(total) * group.total().to(total)).sum()
        return spoken, gaussian


@dataclass(frozen=True)
class Weights(Reduction):
    """w_n(j) and w_n(j) x_n(j) of `count` images: (B, count, 2, C, H, W)."""

    count: int
    wants = "weights"

    def sums(self, part: Part) -> Tensor:
        both = torch.stack([part.w.expand_as(part.wx), part.wx], 2)
        whole = both.new_zeros(len(both), self.count, *both.shape[2:])
        whole[:, part.first : part.first + both.shape[1]] = both
        return whole
