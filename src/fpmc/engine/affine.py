"""Estimators with a Gaussian source: their posterior means are affine in z (App. A.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Full
from fpmc.core.sources import Gaussian
from fpmc.engine.plan import Step


def numerator(group: Group, step: Step, z: Tensor, sigma: float) -> Tensor:
    """Σ_ℓ r_ℓ ⊙ μ̂_ℓ with μ̂_ℓ = μ + Σ(Σ + σ² diag(1/q_ℓ))⁻¹(z − μ), computed in float64: (B, C, H, W)."""
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
