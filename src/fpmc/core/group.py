"""A group: estimators that share their structure and their source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fpmc.core.precision import Precision
from fpmc.core.record import Structure
from fpmc.core.response import Response, SameAsQ
from fpmc.core.sources import Measure, Source
from fpmc.errors import InputError


@dataclass(frozen=True, eq=False)
class Group(Structure, kind="group"):
    """L estimators (q_ℓ, r_ℓ, ν) of a collection (Section 3)."""

    q: Precision
    r: Response
    source: Measure
    weight: Tensor | None = None                        # (C or 1, H or 1, W or 1): all r_ℓ are multiplied by it

    def __post_init__(self) -> None:
        channels, height, width = self.shape
        if len(self.q) != len(self.r):
            raise InputError(f"q has {len(self.q)} estimators, r has {len(self.r)}; give one r for each q")
        if (self.q.height, self.q.width) != (height, width) or self.q.channels not in (1, channels):
            raise InputError(
                f"q is made for images of {self.q.channels}×{self.q.height}×{self.q.width}, "
                f"the source holds {channels}×{height}×{width}; q needs 1 or {channels} channels and the same size"
            )
        if self.weight is not None:
            self._check_weight(self.weight)
        if tuple(self.total().shape) not in {(1, height, width), (channels, height, width)}:
            raise InputError(f"r is made for images of {tuple(self.total().shape)}, the source holds {self.shape}")
        self.source.check(self.q, self.r)

    def _check_weight(self, weight: Tensor) -> None:
        if weight.dim() != 3 or any(size not in (1, whole) for size, whole in zip(weight.shape, self.shape)):
            raise InputError(f"the weight of a group is (C or 1, H or 1, W or 1), got {tuple(weight.shape)}")
        if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
            low, high = weight.min().item(), weight.max().item()
            raise InputError(f"the weight of a group is finite and not negative, got values from {low} to {high}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        return self.source.shape

    def __len__(self) -> int:
        return len(self.q)

    @property
    def requires_grad(self) -> bool:
        """q or r is being learned."""
        return any(getattr(part, "values", torch.empty(0)).requires_grad for part in (self.q, self.r))

    def total(self) -> Tensor:
        """Σ_ℓ r_ℓ of this group, float64 (C or 1, H, W)."""
        return self.r.total() if self.weight is None else self.r.total() * self.weight.double()

    def response(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The response vectors r_ℓ with the weight of the group, (L, C or 1, H, W)."""
        return self.r.dense(dtype) if self.weight is None else self.r.dense(dtype) * self.weight.to(dtype)

    def scaled(self, factor: Tensor | float) -> Group:
        """The same estimators with all r_ℓ multiplied by a number or by (C or 1, H or 1, W or 1)."""
        before = torch.ones(1, 1, 1, dtype=torch.float64) if self.weight is None else self.weight.double()
        return replace(self, weight=before * factor)

    def weighted(self, weight: Tensor) -> Group:
        """The same estimators with this much say each: Σ_ℓ r_ℓ = weight (C or 1, H or 1, W or 1)."""
        return replace(self, weight=weight.double() / self.r.total())

    def merged(self) -> Group:
        """Identical estimators as one, their responses added: the same denoiser, fewer posteriors."""
        if self.source.per_estimator:
            return self
        q, representative = self.q.merge()
        return self if q is self.q else replace(self, q=q, r=self.r.merge(q, representative))

    def pruned(self, budget: float) -> Group:
        """Without entries of q that sum up to at most `budget` in each estimator; responses stay."""
        return self.asking(self.q if isinstance(self.r, SameAsQ) else self.q.pruned(budget))

    def asking(self, q: Precision) -> Group:
        """The same answers asked for by another q."""
        return self if q is self.q else replace(self, q=q)

    def changed(self, change: Callable[[Source], Source]) -> Group:
        """The same estimators of changed images, e.g. without some of them."""
        source = self.source.changed(change)
        return self if source is self.source else replace(self, source=source)
