"""How many images speak: mass, effective number and entropy of every estimator's posterior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fpmc.core.sources import Discrete
from fpmc.engine.reduce.reduction import Found, Part, Reduction


class Masses(NamedTuple):
    """One number for each noisy image and distinct estimator, (B, L) over all groups of images in their order."""

    log_mass: Tensor                                    # log Σ_n ν(n) exp(−Σ q (z − x_n)² / 2σ²)
    effective: Tensor                                   # 1 / Σ_n p(n)²
    entropy: Tensor                                     # −Σ_n p(n) log p(n), in nats


class Mass(Reduction):
    """Log-sum-exp, effective sample size, entropy."""

    wants = "posteriors"

    def sums(self, part: Part) -> Tensor:
        assert part.p is not None
        return torch.stack([part.p.square().sum(1), -torch.xlogy(part.p, part.p).sum(1)])      # (2, B, L)

    def finish(self, found: Sequence[Found], total: Tensor) -> Masses:
        spoken = sorted((each for each in found if each.state is not None), key=lambda each: each.places)
        log_mass = torch.cat([each.state.log_mass - _uniform(each) for each in spoken], 1)  # pyright: ignore
        sums = torch.cat([torch.as_tensor(each.sums) for each in spoken], 2)
        return Masses(log_mass, 1 / sums[0], sums[1])


def _uniform(found: Found) -> float:
    """What weights that are all equal were left out as."""
    source = found.members[0].source
    return math.log(len(source)) if isinstance(source, Discrete) and source.log_weights is None else 0.0
