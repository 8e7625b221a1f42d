"""The Wiener filter: data as a Gaussian, the filter's matrix, and Lukoianov's masks made from it (App. A.3)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fpmc.core.gaussian import Gaussian
from fpmc.errors import InputError


def gains(gaussian: Gaussian, sigma: float) -> Tensor:
    """λ / (λ + σ²), (d,)."""
    return gaussian.eigenvalues / (gaussian.eigenvalues + sigma**2)


def wiener_matrix(gaussian: Gaussian, sigma: float) -> Tensor:
    """W_t = U diag(λ / (λ + σ²)) Uᵀ at α = 1 (App. A.3), float64 (d, d)."""
    return (gaussian.eigenvectors * gains(gaussian, sigma)) @ gaussian.eigenvectors.T


def estimate_sigma(gaussian: Gaussian, z: Tensor) -> Tensor:
    """The noise level of each z (B, C, H, W), float64 (B,): the most likely one if x ~ N(μ, Σ), so z ~ N(μ, Σ + σ²).

    The many directions in which images hardly vary show the noise alone.
    """
    energy = ((z.double() - gaussian.mean).flatten(1) @ gaussian.eigenvectors).square()[:, None]       # (B, 1, d)

    def cost(log_sigma: Tensor) -> Tensor:              # (B, n) -> minus twice the log-likelihood (B, n)
        variance = gaussian.eigenvalues + (2 * log_sigma).exp()[..., None]
        return (variance.log() + energy / variance).sum(-1)

    middle, width = torch.zeros(len(z), 1, dtype=torch.float64), 7.0           # ln σ from −7 to 7
    while width > 1e-5:
        tried = middle + width * torch.linspace(-1, 1, 41, dtype=torch.float64)
        middle, width = tried.gather(1, cost(tried).argmin(1, keepdim=True)), width / 10
    return middle[:, 0].exp()


def varies(gaussian: Gaussian) -> Tensor:
    """Which dimensions have variance, bool (C, H, W).

    Asked of Σ and not of W: at small σ, W magnifies the rounding of a dead pixel's variance beyond any threshold.
    """
    variance = gaussian.eigenvectors.square() @ gaussian.eigenvalues
    return (variance > 1e-10 * variance.max()).view(gaussian.shape)


def lukoianov_masks(
    gaussian: Gaussian, sigma: float, tau: float, rule: Literal["paper", "official"] = "paper"
) -> Tensor:
    """The binary rows 1(Ŵ_t(ℓ) > τ) (App. A.3), bool (d, C, H, W).

    `paper`: each row divided by its maximum, kept where above τ. `official`: absolute values, each row divided by its
    diagonal, then all by their maximum; columns, kept where at least τ. A dimension is always in its own mask, and
    one without variance (a dead border pixel) is alone in it and in nobody else's.
    """
    check_masking(tau, rule)
    filter_ = wiener_matrix(gaussian, sigma)
    alive = varies(gaussian).flatten()
    if rule == "paper":
        top = filter_.amax(1, keepdim=True)
        masks = filter_ > tau * top
    else:
        ratio = filter_.abs() / filter_.diagonal().where(alive, torch.inf)[:, None]
        masks = (ratio >= tau * ratio.max()).T
    masks = masks & alive & alive[:, None]
    masks.fill_diagonal_(True)
    return masks.view(-1, *gaussian.shape)


def check_masking(tau: float, rule: str) -> None:
    """Refuse what `lukoianov_masks` cannot use, before the covariance is worked out for it."""
    if rule not in ("paper", "official"):
        raise InputError(f"rule {rule!r} is unknown; use 'paper' or 'official'")
    if not 0 <= tau < 1:
        raise InputError(f"tau {tau} is not in [0, 1)")
