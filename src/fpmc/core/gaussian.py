"""V as a Gaussian: the source that makes the Wiener filter a member of the class (App. A.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fpmc.core.sources import Measure, Source
from fpmc.errors import InputError

CHUNK = 2048                                            # images per step of the covariance


@dataclass(frozen=True, eq=False)
class Gaussian(Measure, kind="gaussian"):
    """N(μ, Σ) with Σ = U diag(λ) Uᵀ: the source that makes the Wiener filter a member of the class (App. A.3)."""

    mean: Tensor                                        # float64 (C, H, W)
    eigenvalues: Tensor                                 # float64 (d,), non-negative
    eigenvectors: Tensor                                # (d, d), columns
    fitted: Source | None = None                        # the images whose mean and covariance these are

    @property
    def shape(self) -> tuple[int, int, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(self.mean.shape)  # pyright: ignore[reportReturnType]

    def changed(self, change: Callable[[Source], Source]) -> Gaussian:
        if self.fitted is None:
            raise InputError("this Gaussian does not know its images, so none can be left out of it; fit it again")
        images = change(self.fitted)
        return self if images is self.fitted else fit_gaussian(images)

    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("mean", "eigenvalues", "eigenvectors")}

    def covariance(self) -> Tensor:
        """Σ, (d, d)."""
        return (self.eigenvectors * self.eigenvalues) @ self.eigenvectors.T


def fit_gaussian(source: Source) -> Gaussian:
    """N(μ, Σ) with the mean and covariance of the source (App. A.3), in float64; Σ of one image is 0.

    Sums are taken of bytes less 128, whose products are whole numbers, so no digit is lost before the centring. Asked
    again for the same source, it gives the same object.
    """
    if "gaussian" not in source.__dict__:
        source.__dict__["gaussian"] = _fit(source)
    return source.__dict__["gaussian"]


def _fit(source: Source) -> Gaussian:
    dimension = source.shape[0] * source.shape[1] * source.shape[2]
    second = torch.zeros(dimension, dimension, dtype=torch.float64)
    first = torch.zeros(dimension, dtype=torch.float64)
    for pixels, log_weights, _ in source.chunks(CHUNK):
        x = pixels.flatten(1).double() - 128.0
        weighted = x / len(source) if log_weights is None else x * log_weights.exp()[:, None]
        first += weighted.sum(0)
        second.addmm_(weighted.T, x)
    second.addr_(first, first, alpha=-1.0).div_(127.5**2)
    eigenvalues, eigenvectors = torch.linalg.eigh(second)
    mean = ((first + 0.5) / 127.5).view(source.shape)
    return Gaussian(mean, eigenvalues.clamp_(min=0.0), eigenvectors, source)
