"""Square patches, fused: box sums of the squared differences, whatever their size; several sizes share them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Squares
from fpmc.core.response import Partition, SameAsQ
from fpmc.core.sources import Discrete
from fpmc.engine.kernels.fused import Fused, FusedRun
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.kernels.rows import centred_at
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings


@dataclass(frozen=True, kw_only=True)
class BoxSums(Fused):
    """Squares that answer for the pixels they cover, or each for its own output values."""

    kernel = "boxes"
    weighs: bool                                        # the kernel applies the weights of the groups itself
    source: Discrete = field(compare=False, repr=False)

    @property
    def joins(self) -> Hashable | None:
        return (self.respond, self.cut, id(self.source)) if self.weighs or self.respond == "owned" else None

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        group, source = groups[0], groups[0].source
        if not isinstance(source, Discrete) or not isinstance(group.q, Squares):
            return
        covering = answers_in_boxes(group)
        respond = respond_of(group, reduction, mixes=covering)
        if respond == "mixed" and not (covering or isinstance(group.r, Partition)):
            return
        passes = 2 if respond == "mixed" else 1
        channels, height, width = group.shape
        slots, length = channels * height * width, sum(map(len, groups))
        counts = {
            "fused.element": float(passes * slots * len(source)),
            "fused.estimator": float(passes * length * len(source)),        # with their box sums
        }
        why = "square patches are box sums of the squared differences, whatever their size"
        if passes == 2:
            why += "; two passes, since responses mix normalised posteriors"
        yield cls(
            respond=respond, sigma=call.sigma, estimators=length, images=len(source), counts=counts,
            **cls.room(groups, call, settings, slots), why=why,
            cut=cut_of(source, passes, settings), source=source,
            weighs=covering and all(each.weight is None or len(each.weight) == 1 for each in groups),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Boxes(self, groups, z, reduction, total)


def answers_in_boxes(group: Group) -> bool:
    """r is 1 in the patches of q."""
    if not (isinstance(group.r, SameAsQ) and group.r.count is None and isinstance(group.q, Squares)):
        return False
    r = group.r.precision
    return isinstance(r, Squares) and astuple(r) == astuple(group.q.patch)


class _Boxes(FusedRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        assert isinstance(self.offer, BoxSums)
        self.posterior, self.respond = kernels.boxes_posterior, kernels.boxes_respond
        self._weighs = self.offer.weighs and not self.reduction.apart
        scales, around, start = [], [], 0
        for q in (group.q for group in self.groups):
            assert isinstance(q, Squares)
            scales.append((0 if q.inside else -(q.size // 2), q.size, q.stride, *q.grid, start))
            around.append(q.around)
            start += len(q)
        centre = centred_at(self.offer.sigma)
        return kernels.Boxes(*self.groups[0].shape[1:], centre, np.array(scales), np.array(around, np.float32))

    def response(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        weights = torch.ones(len(self.groups), *self.z.shape[2:])
        for row, group in zip(weights, self.groups):
            if self._weighs and group.weight is not None:
                row *= group.weight[0]
        r = self.groups[0].r
        owner = r.owner.flatten().numpy() if isinstance(r, Partition) else np.zeros(0, np.int64)
        return kernels.Answers(owner, weights.flatten(1).numpy())

    def width(self) -> int:
        r = self.groups[0].r
        return r.owner.numel() if isinstance(r, Partition) else math.prod(self.z.shape[2:])
