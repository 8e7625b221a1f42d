"""ELS with large patches, fused: images in the lanes, one displacement at a time (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fpmc.core.sources import Translations
from fpmc.engine.kernels.fused import Fused, FusedRun
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of
from fpmc.engine.kernels.translated import coverage, inside
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings


@dataclass(frozen=True, kw_only=True)
class BlockShifts(Fused):
    """A fixed displacement turns patch distances into box sums, whatever the size of the patches."""

    kernel = "block shifts"
    supplies = frozenset({"answers"})

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Translations):
            return
        images, channels = len(group.source.base), group.shape[0]
        pixels, covered = coverage(group.source)
        squares, across = float(math.prod(covered)), float(covered[0] * pixels[1])
        yield cls(
            respond="owned", sigma=call.sigma, estimators=len(group), images=images,
            counts={"block shifts.element": images * (channels * squares + 3 * (across + math.prod(pixels)))},
            **cls.room(groups, call, settings, math.prod(group.shape)),
            why="a fixed displacement turns patch distances into box sums",
            cut=cut_of(group.source.base, 1, settings, copies=inside(group.source)),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _BlockShifts(self, groups, z, reduction, total)


class _BlockShifts(FusedRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import blocks

        self.posterior = blocks.blocks_posterior
        source = self.groups[0].source
        assert isinstance(source, Translations)
        return blocks.Blocks(*source.shape, source.size)

    def _slots(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixel by pixel, all channels of each."""
        channels, pixels = self.z.shape[1], self.z[0, 0].numel()
        return np.arange(pixels + 1) * channels, np.arange(channels * pixels).reshape(channels, pixels).T.ravel().copy()
