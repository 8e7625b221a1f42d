"""Estimators with a Gaussian source: their posterior means are affine in z (App. A.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.gaussian import Gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full
from fpmc.engine.kernels.offer import Members, Offer, Run, respond_of, weighted
from fpmc.engine.reduce import Mean, Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State


@dataclass(frozen=True, kw_only=True)
class Affine(Offer):
    """μ̂_ℓ = μ + Σ(Σ + σ² diag(1/q_ℓ))⁻¹(z − μ), in float64; of images it has none, so there is nobody to name."""

    kernel = "affine"
    backend = "torch"
    supplies = frozenset({"answers", "shares", "weights", "posteriors"})

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Gaussian) or not group.q.diagonal:
            return
        dimension = group.shape[0] * group.shape[1] * group.shape[2]
        whole, known = isinstance(group.q, Full), group.source.eigenvectors.shape[1]
        yield cls(
            respond=respond_of(group, Mean()),
            sigma=call.sigma / group.q.value**0.5 if isinstance(group.q, Full) else call.sigma,
            estimators=len(group),
            images=0,
            counts={"product64": 2.0 * dimension * known} if whole else {"solve64": float(len(group)) * dimension**2},
            memory=8 * dimension * (known if whole else dimension),
            why="a Gaussian source makes every estimator affine in z",
            threads=settings.threads or torch.get_num_threads(),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Affine(groups[0], self.sigma, z, reduction)


class _Affine(Run):
    def __init__(self, group: Group, sigma: float, z: Tensor, reduction: Reduction) -> None:
        self.group, self.sigma, self.z, self.reduction = group, sigma, z, reduction

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor]:
        if self.reduction.wants != "answers":
            return []
        return weighted([self.group], [numerator(self.group, self.z, self.sigma)], self.reduction)


def numerator(group: Group, z: Tensor, sigma: float) -> Tensor:
    """Σ_ℓ r_ℓ ⊙ μ̂_ℓ, computed in float64: (B, C, H, W)."""
    source = group.source
    assert isinstance(source, Gaussian)
    centred = (z.double() - source.mean.to(z.device)).flatten(1)              # (B, d)
    r = group.r.dense(torch.float64).to(z.device)
    if isinstance(group.q, Full):                       # the Wiener filter itself: in the eigenbasis
        basis, values = source.eigenvectors.to(centred), source.eigenvalues.to(centred)
        shift = (centred @ basis * (values / (values + sigma**2))) @ basis.T
        mean = source.mean.to(z.device) + shift.unflatten(1, group.shape)
        return (r.sum(0) * mean).to(z.dtype)
    covariance = source.covariance().to(centred)
    result = torch.zeros(1, dtype=torch.float64, device=z.device)
    for q_l, r_l in zip(group.q.dense(torch.float64).to(z.device).expand(-1, *group.shape), r):
        on, out = q_l.flatten() > 0, r_l.expand(group.shape).flatten() > 0
        noisy = covariance[on][:, on] + torch.diag(sigma**2 / q_l.flatten()[on])
        weights = torch.linalg.solve(noisy, centred[:, on], left=False)        # (B, |on|)
        mean = source.mean.to(centred).flatten().expand(len(z), -1).clone()
        mean[:, out] += weights @ covariance[on][:, out]
        result = result + r_l * mean.unflatten(1, group.shape)
    return result.to(z.dtype)
