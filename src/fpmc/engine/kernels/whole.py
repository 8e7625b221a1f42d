"""Whole images, fused: the one estimator to which all pixels count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fpmc.core.precision import Full
from fpmc.core.sources import Discrete
from fpmc.engine.kernels.fused import Fused, FusedRun
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State


@dataclass(frozen=True, kw_only=True)
class Whole(Fused):
    """Σ (z − x)² over all dimensions; a temperature is another σ."""

    kernel = "full"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Discrete) or not isinstance(group.q, Full):
            return
        respond, images, dimension = respond_of(group, reduction), len(group.source), math.prod(group.shape)
        passes = 2 if respond == "mixed" else 1
        yield cls(
            respond=respond, sigma=call.sigma / math.sqrt(group.q.value), estimators=1, images=images,
            counts={"fused.element": float(passes * images * dimension)},
            **cls.room(groups, call, settings, dimension), why="all pixels count",
            cut=cut_of(group.source, passes, settings),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Whole(self, groups, z, reduction, total)


class Query(NamedTuple):
    """q = 1 needs no telling."""

    reference: np.float32                               # of distances: what noise alone makes of one, d/2 nats


class _Whole(FusedRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        self.posterior, self.respond = kernels.whole_posterior, kernels.whole_respond
        reference = np.float32(0.5 * self.z[0].numel() / self.asked.scale)
        self.nats = float(reference) * float(self.asked.scale)
        return Query(reference)

    def _state(self, sums: Any, owner: Tensor) -> State:
        state = super()._state(sums, owner)
        return replace(state, top=state.top - self.nats)

    def second(self, begin: int, end: int, state: State) -> Tensor:
        return super().second(begin, end, replace(state, top=state.top + self.nats))

    def response(self) -> np.ndarray:
        return self.groups[0].r.dense().flatten().numpy()

    def width(self) -> int:
        return self.groups[0].r.channels * self.z[0, 0].numel()
