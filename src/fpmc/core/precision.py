"""Q: the query precisions of a group of estimators (Eq. "mod_ll"), each structure with its dense form.

A structure tells the engine what it may exploit; `dense()` says what it means.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fpmc.core.record import Structure
from fpmc.errors import InputError
from fpmc.gate import whole


class Precision(Structure, ABC):
    """L query precisions over images of H×W pixels, shared by the channels or one per channel.

    A structure says what it means (`dense`) and, where it knows better than its dense form, how to measure a distance,
    which part of that does not depend on z, and how posteriors spread over the pixels it covers.
    """

    height: int
    width: int
    channels: int = 1                                   # 1: shared by all channels
    diagonal: bool = True                               # `dense` are vectors; else matrices (L, d, d)

    @abstractmethod
    def __len__(self) -> int:
        """The number of estimators L."""

    @abstractmethod
    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The vectors themselves, (L, C or 1, H, W)."""

    @cached_property
    def entries(self) -> int:
        """How many entries of the dense form are not 0."""
        return int(self.dense().count_nonzero())

    def features(self, x: Tensor) -> Tensor | None:
        """What of the distances to x (n, C, H, W) does not depend on z, (n, …), to be kept; None: nothing."""
        return None

    def distance(self, z: Tensor, x: Tensor, features: Tensor | None = None) -> Tensor:
        """(z − x)ᵀ q (z − x) (Eq. "mod_ll"), (B, n, L), of z (B, C, H, W) and x (n, C, H, W)."""
        squares, q = (z[:, None] - x).square(), self.dense(z.dtype).to(z.device).flatten(1)
        return (squares.sum(2) if self.channels == 1 else squares).flatten(2) @ q.T

    def spread(self, p: Tensor) -> Tensor:
        """Σ_ℓ q_ℓ p_ℓ of posteriors (B, n, L): (B, n, C or 1, H, W)."""
        dense = self.dense(p.dtype).to(p.device)
        return (p @ dense.flatten(1)).unflatten(2, dense.shape[1:])

    def pruned(self, budget: float) -> Precision:
        """Without the smallest entries of each vector, as long as they sum up to at most `budget`.

        They move no logit by more than budget · max (z − x)² / 2σ², which is how a budget is chosen.
        """
        return self

    def shared(self) -> Precision:
        """Shared by the channels, where all of them have the same vectors."""
        return self

    def merge(self) -> tuple[Precision, Tensor]:
        """Identical vectors once, and for each original estimator the index of its representative (L,)."""
        return self, torch.arange(len(self))


@dataclass(frozen=True, eq=False)
class Full(Precision, kind="full"):
    """Every pixel counts alike: q = 1 is the precision of the optimal denoiser (Eq. "emp_pmean").

    With q = 1/T² images are weighed as if the noise were T times as strong: a temperature.
    """

    height: int
    width: int
    value: float = 1.0

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1:
            raise InputError(f"images of {self.height}×{self.width} have no pixels; give height and width of yours")
        if not (math.isfinite(self.value) and self.value > 0):
            raise InputError(f"a precision of {self.value} everywhere weighs no image; it must be positive and finite")

    def __len__(self) -> int:
        return 1

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((1, 1, self.height, self.width), self.value, dtype=dtype)

    def distance(self, z: Tensor, x: Tensor, features: Tensor | None = None) -> Tensor:
        return self.value * (z[:, None] - x).square().sum((2, 3, 4))[..., None]


@dataclass(frozen=True, eq=False)
class Squares(Precision, kind="squares"):
    """p(x, y, s): square patches (Eq. "sq_patch_indicator").

    `inside=False`: one per pixel, centred on it, cut at the border (LS, ELS; App. A.2); s is odd.
    `inside=True`: all that lie inside the image, (H−s+1)(W−s+1) of them, any s (PSPC-Square; App. A.1.1); of these with
    a stride only every stride-th along each axis, and the last, so that together they still cover the image.
    `around`: q is 1 in the patch and this much outside, so that the rest of the image has a weaker say (beyond the
    paper).
    """

    size: int
    height: int
    width: int
    inside: bool = False
    stride: int = 1
    around: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.around, int | float) or not 0 <= self.around < 1:
            raise InputError(f"around {self.around!r}: outside its patch q is 0 or more, and less than 1")
        if whole(self.stride) is None or not 1 <= self.stride <= max(1, self.size):
            raise InputError(f"stride {self.stride}: patches of {self.size} leave gaps; use 1 to {self.size}")
        if self.stride > 1 and not self.inside:
            raise InputError(f"stride {self.stride}: patches centred on every pixel have stride 1; use inside=True")
        if self.size < 1:
            raise InputError(f"patch size {self.size}: a patch has at least one pixel")
        if self.inside and self.size > min(self.height, self.width):
            raise InputError(
                f"patch size {self.size} does not fit images of {self.height}×{self.width}; "
                f"use at most {min(self.height, self.width)}"
            )
        if not self.inside and self.size % 2 == 0:
            way_out = f"use {self.size - 1} or {self.size + 1}"
            raise InputError(f"patch size {self.size}: a patch centred on a pixel is odd; {way_out}")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of estimators; ℓ = row · columns + column."""
        return len(self.starts(self.height)), len(self.starts(self.width))

    def __len__(self) -> int:
        return self.grid[0] * self.grid[1]

    def starts(self, length: int) -> Tensor:
        """Where the patches begin along an axis of this length."""
        if not self.inside:
            return torch.arange(length) - self.size // 2
        steps = -(-(length - self.size) // self.stride) + 1
        return (torch.arange(steps) * self.stride).clamp(max=length - self.size)

    def _band(self, length: int) -> Tensor:             # (positions, length): which pixels each patch covers
        start, at = self.starts(length)[:, None], torch.arange(length)
        return (at >= start) & (at < start + self.size)

    def bands(self) -> tuple[Tensor, Tensor]:
        """The rows (Ly, H) and columns (Lx, W) that the patches cover; a patch is the product of one of each."""
        return self._band(self.height), self._band(self.width)

    @property
    def patch(self) -> Squares:
        """The same patches with nothing around them."""
        return self if self.around == 0 else replace(self, around=0.0)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        rows, columns = self.bands()
        within = (rows[:, None, :, None] & columns[:, None]).reshape(-1, 1, self.height, self.width)
        return torch.where(within, 1.0, torch.tensor(self.around, dtype=dtype))

    def distance(self, z: Tensor, x: Tensor, features: Tensor | None = None) -> Tensor:
        squares = (z[:, None] - x).square().sum(2)
        rows, columns = (band.to(z) for band in self.bands())
        sums = (rows @ squares @ columns.T).flatten(2)
        whole = squares.sum((2, 3))[..., None] if self.around else 0.0
        return (1 - self.around) * sums + self.around * whole

    def spread(self, p: Tensor) -> Tensor:
        rows, columns = (band.to(p) for band in self.bands())
        within = (rows.T @ p.unflatten(2, self.grid) @ columns)[:, :, None]
        return (1 - self.around) * within + self.around * p.sum(2)[..., None, None, None]

    def merge(self) -> tuple[Precision, Tensor]:
        if all(bool(band.all()) for band in self.bands()):
            return Full(self.height, self.width), torch.zeros(len(self), dtype=torch.long)
        return super().merge()


@dataclass(frozen=True, eq=False)
class Precisions(Precision, kind="precisions"):
    """Any non-negative q, (L, C or 1, H, W): binary masks (bool) or soft precisions (float) (Section 4.1)."""

    values: Tensor

    def __post_init__(self) -> None:
        check_weights(self.values, "q")

    @property
    def height(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.values.shape[2]

    @property
    def width(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.values.shape[3]

    @property
    def channels(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.values.to(dtype)

    def pruned(self, budget: float) -> Precision:
        if self.values.dtype == torch.bool or self.values.requires_grad:
            return self
        rows = self.values.flatten(1)
        if bool(((rows > budget) | (rows == 0)).all()):
            return self
        values = rows.double().sort(dim=1).values       # of any type
        last = (values.cumsum(1) <= budget).sum(1, keepdim=True)
        least = torch.nn.functional.pad(values, (0, 1), value=torch.inf).gather(1, last)
        small = rows < least                            # of equal ones all or none, so that what is symmetric stays so
        if not bool((small & (rows > 0)).any()):
            return self
        return Precisions(rows.masked_fill(small, 0.0).view(self.values.shape))

    def shared(self) -> Precision:
        if self.channels == 1 or self.values.requires_grad or not bool((self.values == self.values[:, :1]).all()):
            return self
        return Precisions(self.values[:, :1].contiguous())

    def merge(self) -> tuple[Precision, Tensor]:
        if self.values.requires_grad or len(self) == 1:
            return super().merge()
        seen: dict[bytes, int] = {}
        rows = self.values.flatten(1).contiguous().cpu()
        representative = torch.tensor([seen.setdefault(row.numpy().tobytes(), len(seen)) for row in rows])
        if len(seen) == len(self):
            return super().merge()
        first = torch.full((len(seen),), len(self)).scatter_reduce(0, representative, torch.arange(len(self)), "amin")
        merged = self.values[first.to(self.values.device)]
        if len(seen) == 1 and bool((merged == 1).all()):
            return Full(self.height, self.width), representative
        return Precisions(merged), representative


def check_weights(values: Tensor, name: str) -> None:
    """Refuse what cannot be a set of precision or response vectors (L, C or 1, H, W)."""
    if not isinstance(values, Tensor) or values.dim() != 4 or min(values.shape) < 1:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{name} must be a tensor (L, C or 1, H, W), got {got}")
    if values.dtype == torch.bool:                      # masks can be large, and have nothing wrong in them
        return
    if not bool(torch.isfinite(values.detach()).all()) or bool((values.detach() < 0).any()):
        low, high = values.detach().min().item(), values.detach().max().item()
        raise InputError(f"{name} must be finite and non-negative, got values from {low} to {high}; clamp it at 0")
