"""What the fused CPU kernels share: images laid out in lanes, blocks shared among threads, their sums merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fpmc.core.response import Partition
from fpmc.core.sources import Discrete, scale
from fpmc.engine.kernels.offer import Members, Offer, Run, weight_of, weighted
from fpmc.engine.reduce import Part, Reduction
from fpmc.engine.state import State
from fpmc.images import ImageSet

KEEP = 1 << 30                                          # bytes of images up to which their lane layout is kept
STRETCH = 1 << 28                                       # bytes of images laid out at a time beyond that
UNIT = 127.5                                            # bytes per unit of the images
EVERY = 0xFFFFFFFF                                      # a block that no group has passed over
_blocks: WeakKeyDictionary[ImageSet, tuple[int, np.ndarray]] = WeakKeyDictionary()     # from which block on


@dataclass(frozen=True, kw_only=True)
class Fused(Offer):
    """Numba kernels with images in the vector lanes."""

    backend = "numba"
    supplies = frozenset({"answers", "shares", "weights"})
    cut: float = math.inf                               # nats below the largest logit from which images are passed over

    def __str__(self) -> str:
        text = super().__str__()
        passed = f"{self.why}; images {self.cut:.1f} nats below the largest are passed over"
        return text if math.isinf(self.cut) else text.replace(self.why, passed)

    @staticmethod
    def room(groups: Members, batch: int, threads: int, slots: int) -> float:
        """Bytes of running sums, of a block at work, and of the layout of the images."""
        source, length = groups[0].source, sum(len(group) for group in groups)
        dimension = math.prod(groups[0].shape)
        images = len(getattr(source, "base", source))  # pyright: ignore[reportArgumentType]
        layout = dimension * images if dimension * images <= KEEP else STRETCH
        return threads * (4 * batch * (2 * length + slots) + 4 * 16 * (2 * dimension + length)) + layout


class Lanes(NamedTuple):
    """A stretch of the source in lanes."""

    stretch: Any                                        # simd.lanes.Stretch
    first: int                                          # where in the source lane 0 is
    begin: int                                          # lanes from here
    end: int                                            # to here count


class FusedRun(Run):
    """A fused kernel at work; subclasses say which, and what q and r are to it."""

    posterior: Callable
    respond: Callable

    def __init__(self, offer: Fused, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> None:
        from fpmc.engine.simd import lanes

        source = groups[0].source
        self.source: Discrete = getattr(source, "base", source)  # pyright: ignore[reportAttributeAccessIssue]
        self.offer, self.groups, self.z, self.reduction, self.total = offer, groups, z, reduction, total.to(z)
        self.count, self.passes = len(self.source), 2 if offer.respond == "mixed" else 1
        scaled = (z.detach().double() * UNIT).float().flatten(1).numpy()
        self.asked = lanes.Asked(scaled, np.float32(0.5 / (offer.sigma * UNIT) ** 2), np.float32(offer.cut))
        self.q = self.query()
        self.ends, self.slots = self._slots()
        self.alive: dict[int, np.ndarray] = {}          # by where a stretch begins

    def query(self) -> NamedTuple:
        """q as the kernel takes it."""
        raise NotImplementedError

    def response(self) -> Any:
        """r as the kernel takes it."""
        raise NotImplementedError

    def first(self, begin: int, end: int) -> State:
        from fpmc.engine.simd import lanes

        length, batch = len(self.ends) - 1, len(self.z)
        alive: list[np.ndarray] = []

        def empty() -> Any:
            top = np.full((batch, length), lanes.BOTTOM, np.float32)
            mass, moment = (np.zeros((batch, count), np.float32) for count in (length, len(self.slots)))
            return lanes.Sums(self.ends, self.slots, top, mass, moment, np.zeros((0, 0), np.uint32))

        sums = [empty() for _ in range(self.offer.threads)]
        for part in self._stretches(begin, end):
            alive.append(np.zeros((batch, len(part.stretch.blocks)), np.uint32))
            self.alive[part.first + part.begin] = alive[-1]

            def work(own: Any, first: int, last: int, part: Lanes = part, seen: np.ndarray = alive[-1]) -> None:
                self.posterior(part.stretch, first, last, self.asked, own._replace(alive=seen), self.q)

            share(work, sums, len(part.stretch.blocks))
        owner = torch.from_numpy(np.repeat(np.arange(length), np.diff(self.ends)))
        return reduce(State.merge, (self._state(own, owner) for own in sums))

    def _state(self, sums: Any, owner: Tensor) -> State:
        top, mass, moment = (torch.from_numpy(each).double() for each in (sums.top, sums.mass, sums.moment))
        return State(top, mass, moment / UNIT, owner) if len(owner) else State(top, mass)

    def second(self, begin: int, end: int, state: State) -> Tensor:
        from fpmc.engine.simd import lanes

        top, mass = state.top.float().numpy(), (1 / state.mass).float().numpy()
        wants, batch, r = self.reduction.wants, len(self.z), self.response()
        apart = self.reduction.apart
        none = np.zeros((0, 0, 0), np.float32)
        answers = [
            np.zeros((len(self.groups) if apart else 1, batch, self.z[0].numel()), np.float32)
            for _ in range(self.offer.threads)
        ]
        counted = self._counted() if wants == "shares" else np.zeros(0, np.float32)
        result = self.z.new_zeros((batch, self.count) if wants == "shares" else ())
        for part in self._stretches(begin, end):
            blocks = len(part.stretch.blocks)
            seen = self.alive.get(part.first + part.begin)
            norm = lanes.Norm(top, mass, np.full((batch, blocks), EVERY, np.uint32) if seen is None else seen)
            shares = np.zeros((batch, blocks * lanes.LANES if wants == "shares" else 0), np.float32)
            size = blocks * self.width() * lanes.LANES if wants == "weights" else 0
            weights = np.zeros((batch, size), np.float32)

            def work(own: np.ndarray, first: int, last: int, how: tuple = (part, norm, shares, weights)) -> None:
                part, norm, *kept = how
                wanted = lanes.Wanted(own if wants == "answers" else none, counted, *kept)
                self.respond(part.stretch, first, last, self.asked, norm, self.q, r, wanted)

            share(work, answers, blocks)
            if wants == "shares":
                weighing = part.stretch.log_weights > lanes.BOTTOM             # exp of nothing is not quite nothing
                here = slice(part.first + part.begin, part.first + part.end)
                result[:, here] = torch.from_numpy((shares * weighing)[:, part.begin : part.end])
            elif wants == "weights":
                result = result + self.reduction.sums(self._part(weights, part))
        if wants == "answers":
            return torch.from_numpy(np.sum(answers, axis=0, dtype=np.float64) / UNIT).to(self.z.dtype).transpose(0, 1)
        return result

    def _part(self, weights: np.ndarray, part: Lanes) -> Part:
        """Weights as they come out of the kernel, of the images that count."""
        from fpmc.engine.simd.lanes import LANES

        rows, (height, width) = self.width(), self.groups[0].shape[1:]
        blocks = torch.from_numpy(weights).view(len(weights), -1, rows, LANES).transpose(2, 3).flatten(1, 2)
        w = blocks[:, part.begin : part.end].unflatten(2, (rows // (height * width), height, width))
        w = w * (1 / self.total if self._weighs else weight_of(self.groups[0], self.total))
        index = torch.arange(part.first + part.begin, part.first + part.end)
        x = scale(self.source.read(index), self.z.dtype)
        return Part(int(index[0]), x, w, w * x)

    _weighs = False                                     # the kernel applies the weights of the groups itself

    def width(self) -> int:
        """Rows of weights: pixels, or dimensions where channels are answered apart."""
        raise NotImplementedError

    def _counted(self) -> np.ndarray:
        """How much each row of weights counts in a share."""
        counted = self.reduction.pixels(self.total)
        weight = self.groups[0].weight
        if weight is not None and not self._weighs:
            counted = counted * weight.to(counted)
        counted = counted.flatten(1).sum(0) if self.width() == counted[0].numel() else counted.flatten()
        return counted.float().numpy()

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor] | Tensor:
        if self.reduction.wants != "answers":
            return self.z.new_zeros(()) if sums is None else sums
        if sums is not None:
            answers = [each.reshape(self.z.shape) for each in sums.unbind(1)]
            return answers if self._weighs else weighted(self.groups, answers, self.reduction)
        assert state is not None
        means = state.finish().to(self.z.dtype)
        if self.offer.respond == "means":
            (group,) = self.groups
            answers = [(group.r.dense(self.z.dtype) * means.view(len(self.z), len(group), *group.shape)).sum(1)]
        else:
            places = torch.from_numpy(self.slots).chunk(len(self.groups))
            parts = zip(means.chunk(len(self.groups), 1), places)
            answers = [torch.empty_like(part).index_copy_(1, place, part).view_as(self.z) for part, place in parts]
        return weighted(self.groups, answers, self.reduction)

    def _slots(self) -> tuple[np.ndarray, np.ndarray]:
        """For each estimator the output dimensions whose moments it keeps."""
        length, dimension = sum(len(group) for group in self.groups), math.prod(self.groups[0].shape)
        if self.offer.respond == "mixed":
            return np.zeros(length + 1, np.int64), np.zeros(0, np.int64)
        if self.offer.respond == "means":
            return np.arange(length + 1) * dimension, np.tile(np.arange(dimension), length)
        counts, slots = [np.zeros(1, np.int64)], []
        for group in self.groups:
            assert isinstance(group.r, Partition)
            owner = group.r.owner.expand(group.shape).flatten().numpy()
            counts.append(np.bincount(owner, minlength=len(group)))
            slots.append(np.argsort(owner, kind="stable"))
        return np.concatenate(counts).cumsum(), np.concatenate(slots)

    def _stretches(self, begin: int, end: int) -> Sequence[Lanes] | Iterator[Lanes]:
        """The images from `begin` to `end` in lanes; those that are kept with their images at once."""
        laid_out = lay_out(self.source, begin, end)
        return laid_out if (end - begin) * math.prod(self.source.shape) > KEEP else list(laid_out)


def lay_out(source: Discrete, begin: int, end: int) -> Iterator[Lanes]:
    """A stretch of the source in lanes; what is small enough is laid out once and kept with its images."""
    from fpmc.engine.simd.lanes import LANES, NOTHING, Stretch

    start = 0
    for part in source.parts:
        low, high = max(0, begin - start), min(len(part), end - start)
        dimension = math.prod(part.shape)
        small = (high - low) * dimension <= KEEP
        size = max(1, len(part)) if small else max(LANES, STRETCH // dimension)
        for first in range(low, high, size):
            last = min(first + size, high)
            base = first // LANES * LANES if small else first                  # lane 0
            if small:
                blocks = _kept(part, first // LANES, -(-last // LANES))
            else:
                blocks = in_lanes(part.read(slice(first, last)))
            log_weights = np.full(len(blocks) * LANES, NOTHING, np.float32)
            log_weights[first - base : last - base] = 0.0
            if source.log_weights is not None:
                given = source.log_weights[start + first : start + last]
                log_weights[first - base : last - base] = given.clamp(min=NOTHING).numpy()
            yield Lanes(Stretch(blocks, log_weights), start + base, first - base, last - base)
        start += len(part)


def _kept(part: ImageSet, first: int, last: int) -> np.ndarray:
    """The blocks from `first` to `last` of a set; no other images are read."""
    from fpmc.engine.simd.lanes import LANES

    begin, blocks = _blocks.get(part, (first, np.zeros((0, 0), np.uint8)))
    if not begin <= first <= last <= begin + len(blocks):
        begin, blocks = first, in_lanes(part.read(slice(first * LANES, min(last * LANES, len(part)))))
        _blocks[part] = begin, blocks
    return blocks[first - begin : last - begin]


def in_lanes(pixels: Tensor) -> np.ndarray:
    """(n, C, H, W) to (blocks, d·LANES); the last block is filled up with zeros, which get no weight."""
    from fpmc.engine.simd import lanes

    flat = np.ascontiguousarray(pixels.flatten(1).numpy())
    blocks = np.empty((-(-len(flat) // lanes.LANES), flat.shape[1] * lanes.LANES), np.uint8)
    lanes.lay_out(flat, blocks)
    return blocks


def share(kernel: Callable, sums: list, blocks: int) -> None:
    """Run the kernel in as many threads as there are sums, each over its share of the blocks."""
    if len(sums) == 1:
        kernel(sums[0], 0, blocks)
        return
    bounds = np.linspace(0, blocks, len(sums) + 1).astype(int)
    with ThreadPoolExecutor(len(sums)) as pool:
        for future in [pool.submit(kernel, s, a, b) for s, a, b in zip(sums, bounds, bounds[1:])]:
            future.result()
