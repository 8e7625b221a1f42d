"""The equations of the paper in float64, with no tricks: the oracle of every test."""

from __future__ import annotations

import torch
from torch import Tensor


def logits(z: Tensor, sigma: float, q: Tensor, x: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """log p̃(z | x; q) + log ν(x), up to a constant (Eq. "mod_ll"): (B, L, N)."""
    z, q, x = z.double(), q.double(), x.double()
    difference = z[:, None] - x[None]                                          # (B, N, C, H, W)
    if q.dim() == 3:                                    # precision matrices (L, d, d)
        flat = difference.flatten(2)
        distance = torch.einsum("bni,lij,bnj->bln", flat, q, flat)
    else:
        distance = torch.einsum("lchw,bnchw->bln", q.expand(-1, *z.shape[1:]), difference**2)
    logit = distance / (-2.0 * sigma**2)
    return logit if log_weights is None else logit + log_weights.double()


def posterior_means(z: Tensor, sigma: float, q: Tensor, x: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """The filtered posterior means μ̂ (Eq. "estimator", "mod_posterior"): (B, L, C, H, W)."""
    posterior = torch.softmax(logits(z, sigma, q, x, log_weights), dim=-1)
    return torch.einsum("bln,nchw->blchw", posterior, x.double())


def gaussian_means(z: Tensor, sigma: float, q: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """μ̂ for the source N(μ, Σ) (App. A.3; Wiener when q = 1): μ + Σ(Σ + σ² diag(1/q))⁻¹(z − μ), (B, L, C, H, W)."""
    means = []
    for q_l in q.double().expand(-1, *z.shape[1:]).flatten(1):                 # (d,)
        on = q_l > 0
        noise = sigma**2 * torch.diag(1.0 / q_l[on])
        gain = torch.linalg.solve(covariance[on][:, on] + noise, covariance[on]).T    # (d, |on|)
        means.append(mean.flatten() + (z.double() - mean).flatten(1)[:, on] @ gain.T)
    return torch.stack(means, dim=1).unflatten(2, z.shape[1:])


def combine(means: Tensor, r: Tensor) -> Tensor:
    """(Σ r_ℓ ⊙ μ̂_ℓ) ⊘ (Σ r_ℓ) (Eq. "fpmc_denoiser"): (B, L, C, H, W) and (L, C or 1, H, W) to (B, C, H, W)."""
    r = r.double()
    return (r * means).sum(1) / r.sum(0)


def denoise(z: Tensor, sigma: float, q: Tensor, r: Tensor, x: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """D_FPMC(z, σ; Q, V, R) with one source for all estimators (Eq. "fpmc_denoiser").

    z (B, C, H, W); q and r (L, C or 1, H, W); x (N, C, H, W) in [−1, 1]; log_weights log ν (N,), uniform if None.
    """
    return combine(posterior_means(z, sigma, q, x, log_weights), r)
