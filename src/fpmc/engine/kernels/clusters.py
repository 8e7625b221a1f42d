"""ELS at low noise, fused: patches sorted into clusters, of which most are passed over unseen (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc.core.sources import Translations
from fpmc.engine.kernels.fused import Fused, share
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of
from fpmc.engine.kernels.shifts import ShiftsRun, no_patches
from fpmc.engine.kernels.sorting import form_of, sorted_patches
from fpmc.engine.kernels.translated import inside
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State

WEIGHING = 18                                           # entries of a patch that its weight costs as much as
SORTING = 400.0                                         # nanoseconds for each patch, once


def reached(sigma: float, size: int) -> float:
    """The share of patches that are looked at, as it is on CIFAR-10; with fewer images it is more."""
    half = min(0.5, 0.2 + 0.065 * size)                 # noise level at which every second one is
    return 1 / (1 + (half / sigma) ** 2.3)


@dataclass(frozen=True, kw_only=True)
class SortedPatches(Fused):
    """Alike patches are near a noisy patch together, or far from it together."""

    kernel = "clusters"
    supplies = frozenset({"answers"})

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Translations):
            return
        channels, height, width = group.shape
        images, dimension, size = len(group.source.base), math.prod(group.shape), group.source.size
        threads, inner = settings.threads or torch.get_num_threads(), inside(group.source)
        index = images * (dimension + 12.0 * inner)     # while it is made; a third of the patches' share is kept
        if min(height, width) < size or index > settings.memory:
            return
        entries, pairs = size**2 * channels, images * float(inner) ** 2
        border = images * float(height * width - inner) * max(height, width)
        yield cls(
            respond="owned", sigma=call.sigma, estimators=len(group), images=images,
            counts={
                "clusters.patch": pairs,
                "clusters.entry": pairs * reached(call.sigma, size) * (entries + WEIGHING) + border * entries,
            },
            **cls.room(groups, call, settings, dimension, index),
            why="clusters of alike patches are passed over unseen; they are sorted once, in about "
            f"{1e-9 * SORTING * images * inner / threads:.1g} s, and kept with the images",
            cut=cut_of(group.source.base, 1, settings, copies=inner),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _SortedPatches(self, groups, z, reduction, total)


class _SortedPatches(ShiftsRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import border

        q = super().query()
        self.posterior = border.border_posterior
        return q

    def first(self, begin: int, end: int) -> State:
        height, width = self.z.shape[2:]
        k, state = self.size // 2, super().first(begin, end)                   # of pixels that keep row or column
        moving = torch.arange(height * width).view(height, width)[k : height - k, k : width - k].flatten()
        found = self._moving(begin, end, len(moving))
        for name in state.sums:
            ours, theirs = (getattr(each, name).unflatten(1, (each.top.shape[1], -1)) for each in (state, found))
            ours[:, moving] = theirs[:, : len(moving)]
        return state

    def _moving(self, begin: int, end: int, count: int) -> State:
        """The sums of the pixels that move, and of some more, to fill up vectors."""
        from fpmc.engine.simd import clusters
        from fpmc.engine.simd.shifts import BEYOND

        padded = -(-count // clusters.LANES) * clusters.LANES
        sums = [no_patches(len(self.z), padded, self.z.shape[1]) for _ in range(self.offer.threads)]
        for own in sums:
            own.limit[:, count:] = -BEYOND              # nothing is that near
        start, given = 0, self.source.log_weights
        for part in self.source.parts:
            low, high = max(0, begin - start), min(len(part), end - start)
            if low < high:
                index, axes = sorted_patches(part, low, high, self.size, self.offer.threads)
                log_weights = np.zeros(high - low) if given is None else given[start + low : start + high].numpy()
                lags = np.maximum(log_weights / self.noisy.scale, -BEYOND).astype(np.float32)
                given_to = index, lags, self._asked(axes, padded), form_of(part, self.size)

                def work(own: Any, first: int, last: int, how: tuple = given_to) -> None:
                    index, lags, asked, form = how
                    clusters.clusters_posterior(index, lags, first, last, asked, own, form)

                share(work, sums, len(index.places) // clusters.CLUSTER)
            start += len(part)
        return reduce(State.merge, map(self._sums, sums))

    def _asked(self, axes: np.ndarray, padded: int) -> Any:
        """The patches that move, and their features."""
        from fpmc.engine.simd import clusters

        channels, size = self.z.shape[1], self.size
        z = torch.from_numpy(self.asked.z).view_as(self.z).double()
        patches = F.unfold(z, size).view(len(z), channels, size * size, -1).permute(0, 3, 2, 1).flatten(2)
        along = patches @ torch.from_numpy(axes).double().T
        left = (patches.square().sum(2) - along.square().sum(2)).clamp(min=0).sqrt()
        features = F.pad(torch.cat([along, left[..., None]], 2), (0, 0, 0, padded - patches.shape[1])).transpose(1, 2)
        asked, described = (each.flatten(1).float().contiguous().numpy() for each in (patches, features))
        return clusters.Asked(asked, described, self.noisy.scale, self.noisy.margin)
