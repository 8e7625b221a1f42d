"""ELS where noise is strong, fused: every patch distance from the one before it (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fpmc.core.sources import Translations
from fpmc.engine.kernels.fused import UNIT, Fused
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.kernels.shifts import ShiftsRun
from fpmc.engine.kernels.translated import coverage, inside
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings

POWER = 2.5e-7                                          # relative error of 2^x in the kernels (`simd.columns.power`)


@dataclass(frozen=True, kw_only=True)
class RunningShifts(Fused):
    """What comes in is added and what goes out is taken away, whatever the size of the patches."""

    kernel = "running shifts"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        source = group.source
        if not isinstance(source, Translations) or not 3 <= source.size <= min(group.shape[1:]):
            return
        pixels, covered = coverage(source)
        images, passes = len(source.base), 1 if reduction.wants == "answers" else 2
        yield cls(
            respond=respond_of(group, reduction), sigma=call.sigma, estimators=len(group), images=images,
            counts={
                "running.square": passes * images * float(math.prod(covered)) * group.shape[0],
                "running.patch": passes * images * float(math.prod(pixels)),
            },
            **cls.room(groups, call, settings, math.prod(group.shape)),
            error=rounding(source, call), why="each patch distance from the one before it",
            cut=cut_of(source.base, passes, settings, copies=inside(source)),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _RunningShifts(self, groups, z, reduction, total)


def rounding(source: Translations, call: Call) -> float:
    """Nats that distances are off by, root mean square, for z within a few σ of [−1, 1].

    A patch has been changed twice for every column before it, one of its columns twice for every row; each time it is
    rounded, by a fifth of the last digit. Sums of x(x − 2z) over n values are about n of images and 2σ√n of noise.
    """
    channels, height, width = source.shape
    values = source.size**2 * channels
    logit = (values + 2 * call.sigma * math.sqrt(values)) / (2 * call.sigma**2)
    steps = math.sqrt(2 * max(1, width - source.size)) + math.sqrt(2 * height / source.size)
    return 0.2 * torch.finfo(torch.float32).eps * steps * logit + POWER


class _RunningShifts(ShiftsRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import running

        q = super().query()
        self.posterior, self.weights = running.running_posterior, running.running_weights
        squares = (self.z.double() * UNIT).square().sum(1)
        means = nn.functional.avg_pool2d(squares, self.size, stride=1, padding=self.size // 2)
        self.left_out = self.size**2 * means.flatten(1)         # Σ z² over the patch of each pixel, cut at the border
        return q
