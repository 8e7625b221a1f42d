"""A new kernel: slow, exact, in float64, one image at a time; it makes an offer like all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.sources import Discrete, scale
from fpmc.engine.kernels.offer import Members, Offer, Run, weighted
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State


@dataclass(frozen=True, kw_only=True)
class Slow(Offer):
    kernel = "slow"
    backend = "torch"
    supplies = frozenset({"answers"})

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if isinstance(group.source, Discrete) and group.q.diagonal:
            work = 1e3 * len(group) * len(group.source) * group.q.height * group.q.width
            yield cls(
                respond="means", sigma=call.sigma, estimators=len(group), images=len(group.source),
                counts={"element": work}, memory=1e6, why="slow and exact",
            )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return SlowRun(groups[0], z, self.sigma, reduction)


class SlowRun(Run):
    def __init__(self, group: Group, z: Tensor, sigma: float, reduction: Reduction) -> None:
        self.group, self.z, self.sigma, self.reduction, self.count = group, z, sigma, reduction, len(group.source)

    def first(self, begin: int, end: int) -> State:
        owner = torch.arange(len(self.group)).repeat_interleave(self.z[0].numel())
        state, q = State.empty(self.z.double(), len(self.group), owner), self.group.q.dense(torch.float64)
        for pixels, log_weights, _ in self.group.source.chunks(1, begin, end):
            x = scale(pixels, torch.float64)
            logits = -0.5 / self.sigma**2 * torch.einsum("lchw,bchw->bl", q.expand(-1, *x.shape[1:]), (self.z - x) ** 2)
            logits = logits[:, None] + (0.0 if log_weights is None else log_weights)
            state = state.add(logits, lambda w, x=x: (w.mT @ x.flatten(1)).flatten(1))
        return state

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor]:
        means = state.finish().view(len(self.z), len(self.group), *self.group.shape)
        return weighted([self.group], [(self.group.r.dense(torch.float64) * means).sum(1).to(self.z)], self.reduction)
