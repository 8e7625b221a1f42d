"""The running sums of a posterior over a stretch of a source: cut anywhere, merged in any order.

For every noisy image and estimator `top` is the largest logit so far and `mass` Σ exp(logit − top). Where one pass is
enough, `moment` has Σ exp(logit − top)·x in slots, each of them an output value of one estimator. Where responses mix
normalised posteriors, the states of all stretches are merged before the second pass starts: chunks, threads and ranks
meet at this seam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.engine.simd import NEGLIGIBLE


@dataclass(frozen=True)
class State:
    """Σ exp(logit) over some images, and Σ exp(logit)·x; `top` cancels in every ratio, so autograd may ignore it."""

    top: Tensor                                         # (B, L), −inf before anything was added
    mass: Tensor                                        # (B, L)
    moment: Tensor | None = None                        # (B, S)
    owner: Tensor | None = None                         # int64 (S,), the estimator of each slot

    @classmethod
    def empty(cls, z: Tensor, estimators: int, owner: Tensor | None = None) -> State:
        """Before the first image."""
        top, mass = z.new_full((len(z), estimators), -torch.inf), z.new_zeros(len(z), estimators)
        return cls(top, mass, None if owner is None else z.new_zeros(len(z), len(owner)), owner)

    @property
    def sums(self) -> tuple[str, ...]:
        """Which of its tensors are sums over images."""
        return ("top", "mass") if self.moment is None else ("top", "mass", "moment")

    def add(self, logits: Tensor, moments: Callable[[Tensor], Tensor] | None = None) -> State:
        """With the images of logits (B, n, L); `moments` turns their weights (B, n, L) into what slots gain (B, S)."""
        top = torch.maximum(self.top, logits.detach().amax(1))
        weights = weights_of(logits - top[:, None])
        return self.merge(State(top, weights.sum(1), None if moments is None else moments(weights), self.owner))

    def merge(self, other: State) -> State:
        """The sums over the images of both."""
        top = torch.maximum(self.top, other.top)
        ours, theirs = (fade(each.top, top) for each in (self, other))
        mass, moment = self.mass * ours + other.mass * theirs, None
        if self.moment is not None and other.moment is not None:
            moment = self.moment * self._by_slot(ours) + other.moment * self._by_slot(theirs)
        return State(top, mass, moment, self.owner)

    def finish(self) -> Tensor:
        """The posterior mean in every slot, (B, S)."""
        assert self.moment is not None
        return self.moment / self._by_slot(self.mass)

    def _by_slot(self, values: Tensor) -> Tensor:
        """What belongs to an estimator (B, L), for each of its slots."""
        return values if values.shape[1] == 1 else values[:, self.owner]

    @property
    def log_mass(self) -> Tensor:
        """log Σ exp(logit), (B, L)."""
        return self.top + self.mass.log()


def weights_of(logits: Tensor) -> Tensor:
    """e^logit, written over the logits if no gradient is wanted, and 0 where negligible: denormal numbers are slow."""
    if logits.requires_grad:
        return torch.threshold(logits.exp(), NEGLIGIBLE, 0.0)
    return torch.threshold_(logits.exp_(), NEGLIGIBLE, 0.0)


def fade(top: Tensor, new: Tensor) -> Tensor:
    """exp(top − new): what sums relative to `top` are multiplied with to be relative to `new`."""
    return torch.where(top == new, 1.0, torch.exp(top - new))                  # −inf − (−inf) is no number
