"""ELS where noise is strong, fused: every patch distance from the one before it (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fpmc.core.sources import Translations
from fpmc.engine.kernels.offer import Members, Offer, Run
from fpmc.engine.kernels.shifts import FusedShifts, ShiftsRun
from fpmc.engine.kernels.translated import inside
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings


@dataclass(frozen=True, kw_only=True)
class RunningShifts(FusedShifts):
    """What comes in is added and what goes out is taken away, whatever the size of the patches."""

    kernel = "running shifts"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        for offer in super().offers(groups, call, settings, reduction):
            source, channels = group.source, group.shape[0]
            assert isinstance(source, Translations)
            if not 3 < source.size <= min(group.shape[1:]):                    # few are summed as fast without
                return
            squares = offer.counts["shifts.element"] / (channels + 4)          # of rows with rows
            pairs = (2 if offer.respond == "mixed" else 1) * offer.images * float(inside(source)) ** 2
            stay = squares / group.shape[2] ** 2 * (source.size - 1)           # pixels at the border, one by one
            yield replace(
                offer, counts={"running.square": squares * channels, "running.patch": pairs, "running.stay": stay},
                error=rounding(source, call), why=f"{offer.why}, each from the one before it",
            )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _RunningShifts(self, groups, z, reduction, total)


def rounding(source: Translations, call: Call) -> float:
    """Nats that distances are off by, root mean square, for z within a few σ of [−1, 1].

    A patch has been changed twice for every column before it, one of its columns twice for every row; each time it is
    rounded, by a fifth of the last digit.
    """
    channels, height, width = source.shape
    logit = source.size**2 * channels * (call.sigma**2 + 0.5) / (2 * call.sigma**2)
    steps = math.sqrt(2 * max(1, width - source.size)) + math.sqrt(2 * height / source.size)
    return 0.2 * torch.finfo(torch.float32).eps * steps * logit


class _RunningShifts(ShiftsRun):
    running = True
