"""What the fused CPU kernels share: images laid out in lanes, blocks shared among threads, their sums merged."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fpmc.core.response import Partition
from fpmc.core.sources import Discrete, scale
from fpmc.engine.kernels.layout import Lanes, Layout, pixels_of, stretches
from fpmc.engine.kernels.offer import Members, Offer, Run, weight_of, weighted
from fpmc.engine.reduce import Part, Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.simd import LANES
from fpmc.engine.state import State

UNIT = 127.5                                            # bytes per unit of the images
EVERY = 0xFFFFFFFF                                      # a block that no group has passed over


@dataclass(frozen=True, kw_only=True)
class Fused(Offer):
    """Numba kernels with images in the vector lanes."""

    backend = "numba"
    supplies = frozenset({"answers", "shares", "weights"})
    cut: float = math.inf                               # nats below the largest logit from which images are passed over
    layout: Layout

    def __str__(self) -> str:
        why = self.why
        if not math.isinf(self.cut):
            why += f"; images {self.cut:.1f} nats below the largest are passed over"
        return super().__str__().replace(self.why, why + str(self.layout))

    @staticmethod
    def room(groups: Members, call: Call, settings: Settings, slots: int, also: float = 0.0) -> dict[str, Any]:
        """Threads, layout and memory of an offer: bytes of running sums, of a block at work, of images in lanes.

        Images have what the others, and what there is `also`, leave of the memory that is allowed.
        """
        source, length = groups[0].source, sum(len(group) for group in groups)
        dimension, threads = math.prod(groups[0].shape), settings.threads or torch.get_num_threads()
        images = len(getattr(source, "base", source))  # pyright: ignore[reportArgumentType]
        block = LANES * dimension
        work = threads * (4 * call.batch * (2 * length + slots) + 4 * (2 * block + LANES * length)) + also
        layout = Layout.within(settings.memory - work, images * dimension, block)
        return {"threads": threads, "layout": layout, "memory": work + layout.memory}


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
        self.kept: dict[tuple[int, int], int] = {}      # bytes that stay in lanes, of the images from … to …

    def query(self) -> NamedTuple:
        """q as the kernel takes it."""
        raise NotImplementedError

    def query_of(self, part: Lanes, first: bool) -> NamedTuple:
        """q for some images at the first pass or at the second, with what a kernel keeps in between."""
        return self.q

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
        with self._stretches(begin, end) as every:
            for part in every:
                alive.append(np.zeros((batch, len(part.stretch.blocks)), np.uint32))
                self.alive[part.first + part.begin], q = alive[-1], self.query_of(part, True)

                def work(own: Any, first: int, last: int, how: tuple = (part, alive[-1], q)) -> None:
                    part, seen, q = how
                    self.posterior(part.stretch, first, last, self.asked, own._replace(alive=seen), q)

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
        with self._stretches(begin, end) as every:
            for part in every:
                blocks = len(part.stretch.blocks)
                seen = self.alive.get(part.first + part.begin)
                norm = lanes.Norm(top, mass, np.full((batch, blocks), EVERY, np.uint32) if seen is None else seen)
                shares = np.zeros((batch, blocks * LANES if wants == "shares" else 0), np.float32)
                size = blocks * self.width() * LANES if wants == "weights" else 0
                weights = np.zeros((batch, size), np.float32)

                q = self.query_of(part, False)

                def work(own: np.ndarray, first: int, last: int, how: tuple = (part, norm, q, shares, weights)) -> None:
                    part, norm, q, *kept = how
                    wanted = lanes.Wanted(own if wants == "answers" else none, counted, *kept)
                    self.respond(part.stretch, first, last, self.asked, norm, q, r, wanted)

                share(work, answers, blocks)
                if wants == "shares":
                    here = slice(part.first + part.begin, part.first + part.end)
                    result[:, here] = torch.from_numpy(shares[:, part.begin : part.end])
                elif wants == "weights":
                    result = result + self.reduction.sums(self._part(weights, part))
        if wants == "answers":
            return torch.from_numpy(np.sum(answers, axis=0, dtype=np.float64) / UNIT).to(self.z.dtype).transpose(0, 1)
        return result

    def _part(self, weights: np.ndarray, part: Lanes) -> Part:
        """Weights as they come out of the kernel, of the images that count."""
        rows, (height, width) = self.width(), self.groups[0].shape[1:]
        blocks = torch.from_numpy(weights).view(len(weights), -1, rows, LANES).transpose(2, 3).flatten(1, 2)
        w = blocks[:, part.begin : part.end].unflatten(2, (rows // (height * width), height, width))
        w = w * (1 / self.total if self._weighs else weight_of(self.groups[0], self.total))
        x = scale(pixels_of(part, self.source.shape), self.z.dtype)
        return Part(part.first + part.begin, x, w, w * x)

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

    def _stretches(self, begin: int, end: int) -> AbstractContextManager[Iterable[Lanes]]:
        """The images from `begin` to `end` in lanes; how many of them are kept is settled at the first pass."""
        if (begin, end) not in self.kept:
            left = self.offer.layout.keep - sum(self.kept.values())
            self.kept[begin, end] = min(left, (end - begin) * math.prod(self.source.shape))
        return closing(stretches(self.source, begin, end, self.kept[begin, end], self.offer.layout.stretch))


@cache
def _helpers(count: int) -> ThreadPoolExecutor:
    """Threads that stay: to start some for each pass would take longer than a small pass."""
    return ThreadPoolExecutor(count, "fused")


os.register_at_fork(after_in_child=_helpers.cache_clear)                # a child has none of its parent's threads


def share(kernel: Callable, sums: list, blocks: int) -> None:
    """Run the kernel in as many threads as there are sums, this one among them, each over its share of the blocks."""
    bounds = [blocks * k // len(sums) for k in range(len(sums) + 1)]
    (own, *others) = zip(sums, bounds, bounds[1:])
    futures = [_helpers(len(others)).submit(kernel, *each) for each in others]
    try:
        kernel(*own)
    finally:
        wait(futures)                                   # or they would go on writing to what nobody has any more
    for future in futures:
        future.result()
