"""A reduction: sums over the images of a source that can be cut anywhere and added up."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from fpmc.engine.state import State

if TYPE_CHECKING:
    from fpmc.core.group import Group

# What a kernel gives a reduction: Σ_n w_n(j) x_n(j); the share of each image over a set of output values; the weights
# of a stretch of images; their posteriors under each estimator.
Want = Literal["answers", "shares", "weights", "posteriors"]


@dataclass(frozen=True)
class Part:
    """The posterior of a stretch of images, under the estimators of one group."""

    first: int                                          # where in the source the stretch begins
    x: Tensor                                           # (n, C, H, W)
    w: Tensor                                           # w_n(j), (B, n, C or 1, H, W)
    wx: Tensor                                          # w_n(j) x_n(j), (B, n, C, H, W), as translated
    p: Tensor | None = None                             # p̃_ℓ(n), (B, n, L); where "posteriors" are wanted


class Reduction(ABC):
    """What is wanted of the posterior, and how the sums of the groups are put together."""

    wants: ClassVar[Want]
    apart = False                                       # the answers of groups are wanted each on its own
    by_image = False                                    # sums are by image: whoever has an image keeps them

    def sums(self, part: Part) -> Tensor:
        """What a stretch adds, for reductions that want weights or posteriors; sums of stretches are added."""
        raise NotImplementedError

    def pixels(self, total: Tensor) -> Tensor:
        """For "shares": how much each output value counts, (C, H, W)."""
        raise NotImplementedError

    def finish(self, found: Sequence[Found], total: Tensor) -> Any:
        """The result, from what each step found."""
        return found


@dataclass(frozen=True)
class Found:
    """What one step found for its groups."""

    members: tuple[Group, ...]
    places: tuple[int, ...]                             # of the groups in their collection
    sums: Sequence[Tensor] | Tensor                     # "answers": Σ_ℓ r_ℓ μ̂_ℓ of each group, or of all, weighted
    state: State | None                                 # log-sum-exp, where there were logits
