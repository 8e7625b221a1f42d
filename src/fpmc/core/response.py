"""R: the response weights of a group of estimators (Eq. "fpmc_denoiser"), each structure with its dense form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.precision import Precision, check_weights
from fpmc.core.record import Structure
from fpmc.errors import InputError


class Response(Structure, ABC):
    """L response vectors; Σ_ℓ r_ℓ is what the collection divides by."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of estimators L."""

    @abstractmethod
    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The vectors themselves, (L, C or 1, H, W)."""

    @property
    def channels(self) -> int:
        """1: shared by all channels."""
        return self.dense().shape[1]

    def mix(self, p: Tensor) -> Tensor:
        """Σ_ℓ r_ℓ p_ℓ of posteriors (B, n, L): (B, n, C or 1, H, W)."""
        dense = self.dense(p.dtype).to(p.device)
        return (p @ dense.flatten(1)).unflatten(2, dense.shape[1:])

    @abstractmethod
    def total(self) -> Tensor:
        """Σ_ℓ r_ℓ in float64, (C or 1, H, W)."""

    @abstractmethod
    def merge(self, precision: Precision, representative: Tensor) -> Response:
        """The response of the merged estimators: identical estimators add their responses."""


@dataclass(frozen=True, eq=False)
class Partition(Response, kind="partition"):
    """Each output dimension belongs to one estimator, `owner` (C or 1, H, W); Σ_ℓ r_ℓ = 1 (LS, ELS, Lukoianov)."""

    owner: Tensor
    length: int

    def __len__(self) -> int:
        return self.length

    @property
    def channels(self) -> int:
        return self.owner.shape[0]

    @property
    def is_pixelwise(self) -> bool:
        """Estimator ℓ owns pixel ℓ, in all channels."""
        return torch.equal(self.owner.flatten(), torch.arange(self.length))

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return (self.owner == torch.arange(self.length)[:, None, None, None]).to(dtype)

    def mix(self, p: Tensor) -> Tensor:
        return p[:, :, self.owner.to(p.device)]

    def total(self) -> Tensor:
        return torch.ones(self.owner.shape, dtype=torch.float64)

    def merge(self, precision: Precision, representative: Tensor) -> Response:
        return Partition(representative[self.owner], len(precision))


def pixel(height: int, width: int) -> Partition:
    """r_ℓ = p(x, y, 1): estimator ℓ answers for all channels of pixel ℓ (LS, ELS; App. A.2)."""
    return Partition(torch.arange(height * width).view(1, height, width), height * width)


def one_hot(channels: int, height: int, width: int) -> Partition:
    """r_ℓ = e_ℓ: estimator ℓ answers for dimension ℓ (Lukoianov; App. A.3)."""
    length = channels * height * width
    return Partition(torch.arange(length).view(channels, height, width), length)


@dataclass(frozen=True, eq=False)
class SameAsQ(Response, kind="same as q"):
    """r_ℓ = q_ℓ, times how often the estimator occurs (PSPC; App. A.1)."""

    precision: Precision
    count: Tensor | None = None                         # (L,), 1 if None

    def __len__(self) -> int:
        return len(self.precision)

    @property
    def channels(self) -> int:
        return self.precision.channels

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        q = self.precision.dense(dtype)
        return q if self.count is None else q * self.count.to(dtype)[:, None, None, None]

    def mix(self, p: Tensor) -> Tensor:
        return self.precision.spread(p if self.count is None else p * self.count.to(p))

    def total(self) -> Tensor:
        return self.mix(torch.ones(1, 1, len(self), dtype=torch.float64))[0, 0]

    def merge(self, precision: Precision, representative: Tensor) -> Response:
        count = torch.ones(len(self), dtype=torch.float64) if self.count is None else self.count
        return SameAsQ(precision, torch.zeros(len(precision), dtype=torch.float64).index_add_(0, representative, count))


@dataclass(frozen=True, eq=False)
class Responses(Response, kind="responses"):
    """Any non-negative r, (L, C or 1, H, W) (Section 4.2)."""

    values: Tensor

    def __post_init__(self) -> None:
        check_weights(self.values, "r")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def channels(self) -> int:
        return self.values.shape[1]

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.values.to(dtype)

    def total(self) -> Tensor:
        return self.values.double().sum(0)

    def merge(self, precision: Precision, representative: Tensor) -> Response:
        if len(precision) == len(self):
            return self
        values = self.values.double()                   # as exact as the total; and True + True is not True
        merged = values.new_zeros(len(precision), *values.shape[1:])
        return Responses(merged.index_add(0, representative, values))


def of(values: Tensor, precision: Precision) -> Response:
    """The structure behind a tensor r: a partition where it is one, plain vectors otherwise."""
    check_weights(values, "r")
    if len(values) != len(precision):
        raise InputError(f"q has {len(precision)} estimators, r has {len(values)}; give one r for each q")
    if not values.requires_grad and bool((values.sum(0) == 1).all()) and bool(((values == 0) | (values == 1)).all()):
        return Partition(values.byte().argmax(0), len(values))             # bool has no argmax
    return Responses(values)
