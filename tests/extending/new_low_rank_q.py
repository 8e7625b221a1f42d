"""A new Q that is no vector: q = diag + U Uᵀ, which weighs a few global statistics beside the pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.precision import Precision


@dataclass(frozen=True, eq=False)
class LowRank(Precision, kind="low rank"):
    """Precision matrices diag(d_ℓ) + U_ℓ U_ℓᵀ; Uᵀx does not depend on z, so the engine keeps it from call to call."""

    diagonals: Tensor                                   # (L, C, H, W)
    factors: Tensor                                     # (L, C·H·W, k)
    diagonal = False

    @property
    def height(self) -> int:
        return self.diagonals.shape[2]

    @property
    def width(self) -> int:
        return self.diagonals.shape[3]

    @property
    def channels(self) -> int:
        return self.diagonals.shape[1]

    def __len__(self) -> int:
        return len(self.diagonals)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        u = self.factors.to(dtype)
        return torch.diag_embed(self.diagonals.to(dtype).flatten(1)) + u @ u.mT

    def features(self, x: Tensor) -> Tensor:
        return torch.einsum("ni,lik->nlk", x.flatten(1), self.factors.to(x))

    def distance(self, z: Tensor, x: Tensor, features: Tensor | None = None) -> Tensor:
        squares = (z[:, None] - x).square().flatten(2) @ self.diagonals.to(z).flatten(1).T
        of_x = self.features(x) if features is None else features
        return squares + (self.features(z)[:, None] - of_x).square().sum(3)
