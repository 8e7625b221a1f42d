"""ELS in torch: one displacement of the source at a time, over the pixels that may take it (App. A.2.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.sources import Translations, scale
from fpmc.engine.kernels.offer import Members, Offer, Run, respond_of, weight_of, weighted
from fpmc.engine.kernels.resident import chunks
from fpmc.engine.reduce import Part, Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State, weights_of


@dataclass(frozen=True, kw_only=True)
class Translated(Offer):
    """A fixed displacement turns patch distances into box sums."""

    kernel = "shifts"
    backend = "torch"
    supplies = frozenset({"answers", "shares", "weights"})
    chunk: int                                          # images at a time
    resident: int                                       # bytes of them that stay on a device

    @property
    def amount(self) -> str:
        return f"{self.chunk} at a time"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Translations):
            return
        images, dimension, unit = len(group.source.base), math.prod(group.shape), torch.finfo(call.dtype).bits // 8
        per_image = (call.batch * 4 * dimension + 2 * dimension) * unit
        chunk = settings.chunk or max(1, min(images, settings.memory // per_image))
        _, covered = coverage(group.source)
        yield cls(
            respond=respond_of(group, reduction), sigma=call.sigma, estimators=len(group), images=images,
            counts={"element": images * float(math.prod(covered)) * (group.shape[0] + 4)}, memory=chunk * per_image,
            why="a fixed displacement turns patch distances into box sums", chunk=chunk, resident=settings.resident,
            threads=torch.get_num_threads(),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Translated(self, groups[0], z, reduction, total)


class Moved(NamedTuple):
    """Images under one displacement."""

    here: tuple                                         # the pixels that take it
    logits: Tensor                                      # (B, n, rows, columns)
    x: Tensor                                           # what these pixels then show, (n, C, rows, columns)


class _Translated(Run):
    def __init__(self, offer: Translated, group: Group, z: Tensor, reduction: Reduction, total: Tensor) -> None:
        assert isinstance(group.source, Translations)
        self.offer, self.group, self.z, self.reduction, self.source = offer, group, z, reduction, group.source
        self.count, self.total = len(group.source.base), total.to(z)
        self.passes = 2 if offer.respond == "mixed" else 1
        self.owner = torch.arange(z[0, 0].numel(), device=z.device).repeat(z.shape[1])

    def first(self, begin: int, end: int) -> State:
        top, mass = self.z.new_full(self.z[:, 0].shape, -torch.inf), torch.zeros_like(self.z[:, 0])
        moment = torch.zeros_like(self.z)
        for x, log_weights, _ in self._chunks(begin, end):
            for here, logits, moved in self._moved(x, log_weights):
                inner = logits.flatten(2)               # pixels as estimators
                slots = torch.arange(inner.shape[2], device=inner.device).repeat(x.shape[1])
                state = State(top[here].flatten(1), mass[here].flatten(1), moment[here].flatten(1), slots)
                state = state.add(inner, lambda w, m=moved: _moments(w, m))
                top = _put(top, here, state.top)
                mass = _put(mass, here, state.mass)
                moment = _put(moment, here, state.moment)
        return State(top.flatten(1), mass.flatten(1), moment.flatten(1), self.owner)

    def second(self, begin: int, end: int, state: State) -> Tensor:
        top, mass = (each.view(self.z[:, 0].shape) for each in (state.top, state.mass))
        shares = self.reduction.wants == "shares"
        counted = self.reduction.pixels(self.total) if shares else weight_of(self.group, self.total)
        weight = 1.0 if self.group.weight is None else self.group.weight.to(self.total)
        result = self.z.new_zeros((len(self.z), self.count) if shares else ())
        for x, log_weights, first in self._chunks(begin, end):
            w, wx = (self.z.new_zeros(len(self.z), len(x), *self.group.shape) for _ in range(2))
            for here, logits, moved in self._moved(x, log_weights):
                p = weights_of(logits - top[here][:, None]) / mass[here][:, None]
                w[here] += p[:, :, None]
                wx[here] += p[:, :, None] * moved
            if shares:
                result[:, first : first + len(x)] = (w * (counted * weight)).sum((2, 3, 4))
            else:
                result = result + self.reduction.sums(Part(first, x, w * counted, wx * counted))
        return result

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor] | Tensor:
        if self.reduction.wants != "answers":
            return self.z.new_zeros(()) if sums is None else sums
        assert state is not None
        return weighted([self.group], [state.finish().view_as(self.z)], self.reduction)

    def _chunks(self, begin: int, end: int) -> Iterator[tuple[Tensor, Tensor | None, int]]:
        base, offer = self.source.base, self.offer
        for pixels, log_weights, first in chunks(base, offer.chunk, begin, end, self.z, offer.resident):
            yield scale(pixels, self.z.dtype), log_weights, first

    def _moved(self, x: Tensor, log_weights: Tensor | None) -> Iterator[Moved]:
        size, z = self.source.size, self.z
        for dy, rows, window_y in displacements(z.shape[2], size):
            for dx, columns, window_x in displacements(z.shape[3], size):
                around_z = z[..., slice(*window_y), slice(*window_x)]
                around_x = x[..., window_y[0] + dy : window_y[1] + dy, window_x[0] + dx : window_x[1] + dx]
                bands = [_band(a, b, size, z) for a, b in ((rows, window_y), (columns, window_x))]
                squares = (around_z[:, None] - around_x).square().sum(2)
                logits = bands[0] @ squares @ bands[1].T * (-0.5 / self.offer.sigma**2)
                if log_weights is not None:
                    logits = logits + log_weights[:, None, None]
                moved = x[..., slice(rows[0] + dy, rows[1] + dy), slice(columns[0] + dx, columns[1] + dx)]
                yield Moved((..., slice(*rows), slice(*columns)), logits, moved)


def _moments(weights: Tensor, moved: Tensor) -> Tensor:
    """What slots gain: weights (B, n, pixels), moved (n, C, rows, columns)."""
    return (weights.unflatten(2, moved.shape[2:])[:, :, None] * moved).sum(1).flatten(1)


def _put(whole: Tensor, here: tuple, part: Tensor | None) -> Tensor:
    assert part is not None
    whole = whole.clone() if torch.is_grad_enabled() else whole
    whole[here] = part.view(whole[here].shape)
    return whole


def inside(source: Translations) -> int:
    """Pixels whose patches move: as many places one of them may take its patch from."""
    _, height, width = source.shape
    return max(height - source.size + 1, 1) * max(width - source.size + 1, 1)


def coverage(source: Translations) -> tuple[list[int], list[int]]:
    """Along either axis, over all displacements: pixels that take one, and pixels that their patches cover."""
    pixels, covered = [0, 0], [0, 0]
    for axis, length in enumerate(source.shape[1:]):
        for _, own, window in displacements(length, source.size):
            pixels[axis] += own[1] - own[0]
            covered[axis] += window[1] - window[0]
    return pixels, covered


def displacements(length: int, size: int) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """The displacements along one axis: offset, the pixels that take it, and the pixels their patches cover."""
    k = size // 2
    for offset in range(min(0, 2 * k + 1 - length), max(0, length - 2 * k - 1) + 1):
        if offset == 0:                                 # every pixel stays; patches are cut at the border
            yield 0, (0, length), (0, length)
        else:
            first, last = k + max(0, -offset), length - k - max(0, offset)
            yield offset, (first, last), (first - k, last + k)


def _band(pixels: tuple[int, int], window: tuple[int, int], size: int, like: Tensor) -> Tensor:
    """Which pixels of the window each patch covers, (pixels, window)."""
    centre, at = (torch.arange(*each, device=like.device) for each in (pixels, window))
    return ((at - centre[:, None]).abs() <= size // 2).to(like)
