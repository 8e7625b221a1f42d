"""ELS at low noise, fused: patches sorted into clusters, of which most are passed over unseen (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc.core.sources import Translations
from fpmc.engine.kernels.fused import Fused, share
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of
from fpmc.engine.kernels.running_shifts import POWER
from fpmc.engine.kernels.shifts import ShiftsRun, no_patches
from fpmc.engine.kernels.sorting import form_of, sorted_patches
from fpmc.engine.kernels.translated import inside
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State

ACCOUNTS = 0.9                                          # of the tolerance: what clusters within the cut may take
SORTING = 400.0                                         # nanoseconds for each patch, once


def reached(sigma: float, size: int) -> float:
    """The share of patches that are looked at, as it is on CIFAR-10; with fewer images it is more."""
    half = min(0.5, 0.2 + 0.065 * size)                 # noise level at which every second one is
    return 1 / (1 + (half / sigma) ** 2.3)


@dataclass(frozen=True, kw_only=True)
class SortedPatches(Fused):
    """Alike patches are near a noisy patch together, or far from it together."""

    kernel = "clusters"
    operation: ClassVar[str] = "clusters.entry"
    means: ClassVar[str] = "clusters of alike patches are passed over unseen"
    supplies = frozenset({"answers"})
    allowed: float                                      # share of a posterior that clusters within the cut may hold

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
        seen, border = pairs * reached(call.sigma, size), images * float(height * width - inner) * max(height, width)
        yield cls(
            respond="owned", sigma=call.sigma, estimators=len(group), images=images,
            counts={
                "clusters.patch": pairs, "clusters.weight": seen, "clusters.entry": border * entries,
                cls.operation: seen * entries + border * entries * (cls.operation == "clusters.entry"),
            },
            **cls.room(groups, call, settings, dimension, index),
            error=cls.rounding(entries, call),
            why=f"{cls.means}; they are sorted once, in about "
            f"{1e-9 * SORTING * images * inner / threads:.1g} s, and kept with the images",
            cut=cut_of(group.source.base, 1, settings, copies=inner / (1 - ACCOUNTS)),
            allowed=0.0 if settings.exact else ACCOUNTS * settings.tolerance,
        )

    @staticmethod
    def rounding(entries: int, call: Call) -> float:
        """Nats that distances are off by, beyond plain sums."""
        return 0.0

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _SortedPatches(self, groups, z, reduction, total)


@dataclass(frozen=True, kw_only=True)
class PatchProducts(SortedPatches):
    """Distances without Σ z², which all patches share: half as many operations."""

    kernel = "cluster products"
    operation = "clusters.product"
    means = f"{SortedPatches.means}, distances of others are sums of products"

    @staticmethod
    def rounding(entries: int, call: Call) -> float:
        """Root mean square, for z within a few σ of [−1, 1]: Σ x(x − 2z) over n values, rounded n times by a fifth of
        the last digit, is about n of images and 2σ√n of noise.
        """
        logit = (entries + 2 * call.sigma * math.sqrt(entries)) / (2 * call.sigma**2)
        return 0.2 * torch.finfo(torch.float32).eps * math.sqrt(entries) * logit + POWER


class _SortedPatches(ShiftsRun):
    offer: SortedPatches

    def query(self) -> NamedTuple:
        from fpmc.engine.simd import border

        q, channels, area = super().query(), self.z.shape[1], self.size**2
        self.posterior, self.products = border.border_posterior, isinstance(self.offer, PatchProducts)
        z = torch.from_numpy(self.asked.z).view_as(self.z).double()
        columns = F.unfold(z, self.size).view(len(z), channels, area, -1)
        self.patches = columns.permute(0, 3, 2, 1).flatten(2)                  # (B, those that move, C·k²)
        self.squares = self.patches.square().sum(2)
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
        left_out = F.pad(self.squares, (0, padded - count)) if self.products else 0.0
        return reduce(State.merge, (self._sums(own, left_out) for own in sums))

    def _asked(self, axes: np.ndarray, padded: int) -> Any:
        """The patches that move, and their features."""
        from fpmc.engine.simd import clusters

        fill = padded - self.patches.shape[1]
        along = self.patches @ torch.from_numpy(axes).double().T
        left = (self.squares - along.square().sum(2)).clamp(min=0).sqrt()
        features = F.pad(torch.cat([along, left[..., None]], 2), (0, 0, 0, fill)).transpose(1, 2)
        z = self.patches * (-2 if self.products else 1)
        left_out = F.pad(self.squares * self.products, (0, fill))
        asked, described, left_out = (each.flatten(1).float().contiguous().numpy() for each in (z, features, left_out))
        return clusters.Asked(
            asked, described, left_out, self.noisy.scale, self.noisy.margin, self.offer.allowed, self.products
        )
