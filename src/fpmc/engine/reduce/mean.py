"""The mean of the posterior: the denoiser itself (Eq. "fpmc_denoiser")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fpmc.engine.reduce.reduction import Found, Reduction


@dataclass(frozen=True)
class Mean(Reduction):
    """D(z)_j = Σ_n w_n(j) x_n(j); `apart`: what each group would answer alone, as if it were the whole collection."""

    apart: bool = False
    wants = "answers"

    def finish(self, found: Sequence[Found], total: Tensor) -> Tensor | list[Tensor]:
        if not self.apart:
            return sum((sums for each in found for sums in each.sums), start=total.new_zeros(())) / total
        answers = {
            place: sums / group.r.total().to(sums)
            for each in found
            for place, group, sums in zip(each.places, each.members, each.sums, strict=True)
        }
        return [answers[place] for place in sorted(answers)]
