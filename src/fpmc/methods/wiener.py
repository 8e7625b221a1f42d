"""The Wiener filter: data as a Gaussian, the filter's matrix, and Lukoianov's masks made from it (App. A.3)."""

from __future__ import annotations

from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fpmc.core import shelf
from fpmc.core.gaussian import Gaussian
from fpmc.errors import InputError
from fpmc.methods.rows import filter_rows, weighed

Rule = Literal["paper", "official"]
_varies: WeakKeyDictionary[Gaussian, Tensor] = WeakKeyDictionary()
UNREACHED = 1e30                                        # a threshold of rows that are not asked about


def gains(gaussian: Gaussian, sigma: float) -> Tensor:
    """λ / (λ + σ²), (k,)."""
    return gaussian.eigenvalues / (gaussian.eigenvalues + sigma**2)


def wiener_matrix(gaussian: Gaussian, sigma: float) -> Tensor:
    """W_t = U diag(λ / (λ + σ²)) Uᵀ at α = 1 (App. A.3), float64 (d, d)."""
    return (gaussian.eigenvectors * gains(gaussian, sigma)) @ gaussian.eigenvectors.T


def estimate_sigma(gaussian: Gaussian, z: Tensor) -> Tensor:
    """The noise level of each z (B, C, H, W), float64 (B,): the most likely one if x ~ N(μ, Σ), so z ~ N(μ, Σ + σ²).

    The many directions in which images hardly vary show the noise alone.
    """
    centred = (z.double() - gaussian.mean).flatten(1)
    energy = (centred @ gaussian.eigenvectors).square()[:, None]               # (B, 1, k)
    others = centred.shape[1] - energy.shape[2]         # directions in which images do not vary at all
    rest = (centred.square().sum(1) - energy[:, 0].sum(1)).clamp(min=0)[:, None] if others else 0.0

    def cost(log_sigma: Tensor) -> Tensor:              # (B, n) -> minus twice the log-likelihood (B, n)
        noise = (2 * log_sigma).exp()
        variance = gaussian.eigenvalues + noise[..., None]
        return (variance.log() + energy / variance).sum(-1) + others * 2 * log_sigma + rest / noise

    middle, width = torch.zeros(len(z), 1, dtype=torch.float64), 7.0           # ln σ from −7 to 7
    while width > 1e-5:
        tried = middle + width * torch.linspace(-1, 1, 41, dtype=torch.float64)
        middle, width = tried.gather(1, cost(tried).argmin(1, keepdim=True)), width / 10
    return middle[:, 0].exp()


def varies(gaussian: Gaussian) -> Tensor:
    """Which dimensions have variance, bool (C, H, W).

    Asked of Σ and not of W: at small σ, W magnifies the rounding of a dead pixel's variance beyond any threshold.
    """
    if (known := _varies.get(gaussian)) is None:        # asked for each noise level
        variance = weighed(gaussian.eigenvectors, gaussian.eigenvalues)
        known = _varies[gaussian] = (variance > 1e-10 * variance.max()).view(gaussian.shape)
    return known


def lukoianov_masks(gaussian: Gaussian, sigma: float, tau: float, rule: Rule = "paper") -> Tensor:
    """The binary rows 1(Ŵ_t(ℓ) > τ) (App. A.3), bool (d, C, H, W).

    `paper`: each row divided by its maximum, kept where above τ. `official`: absolute values, each row divided by its
    diagonal, then all by their maximum; columns, kept where at least τ. A dimension is always in its own mask, and
    one without variance (a dead border pixel) is alone in it and in nobody else's. Masks of a Gaussian that is kept on
    disk are kept there too, packed into bits.
    """
    check_masking(tau, rule)
    d = gaussian.mean.numel()
    key = shelf.key_of("masks", 1, gaussian.content, sigma, tau, rule)
    found = shelf.take(key) if gaussian.content else None
    if found is not None and found.keys() == {"bits"} and found["bits"].numel() == -(-d * d // 8):
        masks = torch.from_numpy(np.unpackbits(found["bits"].numpy(), count=d * d).view(bool)).view(d, d)
    else:
        masks = _masks(gaussian, sigma, tau, rule)
        if gaussian.content:
            shape = "×".join(map(str, gaussian.shape))
            what = f"Lukoianov's masks of {shape} at sigma {sigma:.4g}, tau {tau:g}, {rule}"
            shelf.keep(key, {"bits": torch.from_numpy(np.packbits(masks.numpy().ravel()))}, what)
    return masks.view(-1, *gaussian.shape)


def _masks(gaussian: Gaussian, sigma: float, tau: float, rule: Rule) -> Tensor:
    alive = varies(gaussian).flatten()
    masks = torch.zeros(len(alive), len(alive), dtype=torch.bool)
    with filter_rows(gaussian, gains(gaussian, sigma), tau) as rows:
        if rule == "paper":
            for at, keep in rows.above((tau * rows.largest()).where(alive, UNREACHED)):
                masks[at] = keep
        else:
            diagonal = rows.diagonal.where(alive, torch.inf)
            limits = tau * (rows.largest(absolute=True) / diagonal).max() * rows.diagonal
            for at, keep in rows.above(limits.where(alive, UNREACHED), absolute=True, inclusive=True):
                masks[:, at] = keep.T
    masks &= alive
    masks &= alive[:, None]
    masks.fill_diagonal_(True)
    return masks


def check_masking(tau: float, rule: str) -> None:
    """Refuse what `lukoianov_masks` cannot use, before the covariance is worked out for it."""
    if rule not in ("paper", "official"):
        raise InputError(f"rule {rule!r} is unknown; use 'paper' or 'official'")
    if not 0 <= tau < 1:
        raise InputError(f"tau {tau} is not in [0, 1)")
