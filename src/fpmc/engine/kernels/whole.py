"""Whole images, fused: the one estimator to which all pixels count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fpmc.core.precision import Full
from fpmc.core.sources import Discrete
from fpmc.engine.kernels.fused import Fused, FusedRun
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings


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


class Nothing(NamedTuple):
    """q = 1 needs no telling."""

    value: int = 1


class _Whole(FusedRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        self.posterior, self.respond = kernels.whole_posterior, kernels.whole_respond
        return Nothing()

    def response(self) -> np.ndarray:
        return self.groups[0].r.dense().flatten().numpy()

    def width(self) -> int:
        return self.groups[0].r.channels * self.z[0, 0].numel()
