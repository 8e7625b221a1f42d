"""ELS, fused: every displacement of an image at once (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fpmc.core.sources import Translations, scale
from fpmc.engine.kernels.fused import UNIT, Fused, FusedRun, share
from fpmc.engine.kernels.layout import Lanes, pixels_of
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of, weight_of
from fpmc.engine.kernels.translated import inside
from fpmc.engine.reduce import Part, Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State


@dataclass(frozen=True, kw_only=True)
class FusedShifts(Fused):
    """A fixed displacement turns patch distances into box sums."""

    kernel = "shifts"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Translations):
            return
        inner = inside(group.source)
        channels, height, width = group.shape
        reach = max(0, height - group.source.size // 2 * 2 - 1)
        rows = sum(height - abs(dy) for dy in range(-reach, reach + 1))        # of z with rows of an image
        images, passes = len(group.source.base), 1 if reduction.wants == "answers" else 2
        yield cls(
            respond=respond_of(group, reduction), sigma=call.sigma, estimators=len(group), images=images,
            counts={"shifts.element": passes * images * rows * float(width) ** 2 * (channels + 4)},
            **cls.room(groups, call, settings, math.prod(group.shape)),
            why="a fixed displacement turns patch distances into box sums",
            cut=cut_of(group.source.base, passes, settings, copies=inner),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return ShiftsRun(self, groups, z, reduction, total)


def no_patches(batch: int, pixels: int, channels: int) -> Any:
    """Before the first image."""
    from fpmc.engine.simd import shifts

    near, best, limit = (np.full((batch, pixels), shifts.BEYOND, np.float32) for _ in range(3))
    return shifts.Patches(near, best, limit, np.zeros((batch, pixels)), np.zeros((batch, pixels * channels)))


class ShiftsRun(FusedRun):
    """Pixel by pixel, under all displacements."""

    left_out: Tensor | float = 0.0                      # of distances in the kernel, (B, pixels): all patches share it

    def query(self) -> NamedTuple:
        from fpmc.engine.simd import shifts
        from fpmc.engine.simd.vector import LANES

        self.posterior, self.weights = shifts.shifts_posterior, shifts.shifts_weights
        source = self.groups[0].source
        assert isinstance(source, Translations)
        steep = 0.5 / (self.offer.sigma * UNIT) ** 2
        z = np.pad(self.asked.z, ((0, 0), (0, LANES)))  # vectors may reach beyond its end
        self.noisy = shifts.Query(z, steep, min(self.offer.cut / steep, float(shifts.BEYOND)))
        self.size = source.size
        return shifts.Shifts(*source.shape, source.size)

    def first(self, begin: int, end: int) -> State:
        sums = [no_patches(len(self.z), self.z[0, 0].numel(), self.z.shape[1]) for _ in range(self.offer.threads)]
        with self._stretches(begin, end) as every:
            for part in every:
                def work(own: Any, first: int, last: int, stretch: Any = part.stretch) -> None:
                    self.posterior(stretch.blocks, stretch.log_weights, first, last, self.noisy, own, self.q)

                share(work, sums, len(part.stretch.blocks))
        return reduce(State.merge, (self._sums(own, self.left_out) for own in sums))

    def _sums(self, patches: Any, left_out: Tensor | float) -> State:
        near, mass, moment = (torch.from_numpy(each).double() for each in (patches.near, patches.mass, patches.moment))
        owner = torch.arange(near.shape[1]).repeat_interleave(self.z.shape[1])
        top = -self.noisy.scale * (near + left_out)
        return State(torch.where(mass > 0, top, -torch.inf), mass, moment / UNIT, owner)

    def second(self, begin: int, end: int, state: State) -> Tensor:
        from fpmc.engine.simd import shifts

        shares, batch, pixels = self.reduction.wants == "shares", len(self.z), self.z[0, 0].numel()
        near, mass = (-state.top / self.noisy.scale - self.left_out).float().numpy(), state.mass.numpy()
        limit = np.minimum(near + self.noisy.margin - np.log(mass) / self.noisy.scale, shifts.BEYOND)
        never = np.full_like(near, -shifts.BEYOND)      # nothing is nearer than what the first pass has found
        unused = np.zeros((batch, self.z[0].numel()))
        patches = shifts.Patches(near, never, limit.astype(np.float32), mass, unused)
        counted = self._counted() if shares else np.zeros(pixels, np.float32)
        result = self.z.new_zeros((batch, self.count) if shares else ())
        with self._stretches(begin, end) as every:
            for part in every:
                stretch, count = part.stretch, len(part.stretch.log_weights)
                found = np.zeros((batch, count), np.float32)
                weights = np.zeros((batch, 0 if shares else count, pixels * (1 + self.z.shape[1])), np.float32)

                def work(own: None, first: int, last: int, s: Any = stretch, to: tuple = (found, weights)) -> None:
                    images = s.blocks, s.log_weights, first, last
                    self.weights(*images, self.noisy, patches, self.q, 1 / mass, counted, *to)

                share(work, [None] * self.offer.threads, len(stretch.blocks))
                here = slice(part.begin, part.end)
                if shares:
                    result[:, part.first + part.begin : part.first + part.end] = torch.from_numpy(found[:, here])
                else:
                    result = result + self.reduction.sums(self._moved(torch.from_numpy(weights[:, here]), part))
        return result

    def _moved(self, weights: Tensor, part: Lanes) -> Part:
        """Posteriors and their products with moved images, (B, n, pixels·(1 + C)), as the reduction takes them."""
        channels, height, width = self.groups[0].shape
        both = weights.view(*weights.shape[:2], height, width, 1 + channels).movedim(4, 2)
        counted = weight_of(self.groups[0], self.total)
        x = scale(pixels_of(part, self.source.shape), self.z.dtype)
        return Part(part.first + part.begin, x, both[:, :, :1] * counted, both[:, :, 1:] / UNIT * counted)

    def width(self) -> int:
        return self.z[0, 0].numel()

    def _slots(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixel by pixel, all channels of each."""
        channels, pixels = self.z.shape[1], self.z[0, 0].numel()
        return np.arange(pixels + 1) * channels, np.arange(channels * pixels).reshape(channels, pixels).T.ravel().copy()
