"""Images in lanes: as many as memory takes are kept with their images, the others are read ahead of the kernels.

What is kept is read once, for all passes and calls. Of the rest two stretches are in memory: kernels work on one while
a thread of its own reads and lays out the next.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fpmc.core.sources import Discrete
from fpmc.images import ImageSet

STRETCH = 1 << 26                                       # bytes of images laid out at a time, at most
T = TypeVar("T")
_blocks: WeakKeyDictionary[ImageSet, tuple[int, np.ndarray]] = WeakKeyDictionary()     # from which block on


class Layout(NamedTuple):
    """How much of a source stays in lanes, and how much of the others is laid out at a time."""

    images: int                                         # bytes of all of them
    keep: int                                           # bytes
    stretch: int                                        # bytes; 0: all are kept

    @classmethod
    def within(cls, memory: float, images: int, block: int) -> Layout:
        """What so much memory allows; a stretch is a block at least."""
        if images <= memory:
            return cls(images, images, 0)
        stretch = max(block, min(STRETCH, int(memory) // 4))
        return cls(images, max(0, int(memory) - 2 * stretch), stretch)

    @property
    def memory(self) -> int:
        """Bytes that images in lanes take."""
        return self.keep + 2 * self.stretch

    def __str__(self) -> str:
        if not self.stretch:
            return ""
        keep, images, stretch = (f"{each / 2**20:.0f}" for each in (self.keep, self.images, self.stretch))
        return f"; {keep} of {images} MiB of images are kept in lanes, the others read ahead, {stretch} MiB at a time"


class Lanes(NamedTuple):
    """A stretch of the source in lanes; whoever asks for the next one has done with it."""

    stretch: Any                                        # simd.lanes.Stretch
    first: int                                          # where in the source lane 0 is
    begin: int                                          # lanes from here
    end: int                                            # to here count


def stretches(source: Discrete, begin: int, end: int, keep: int, size: int) -> Generator[Lanes]:
    """The images from `begin` to `end`, of which the first `keep` bytes are kept and others go by `size` bytes."""
    every = lay_out(source, begin, end, keep, size)
    return ahead(every) if (end - begin) * math.prod(source.shape) > keep else every


def lay_out(source: Discrete, begin: int, end: int, keep: int, size: int) -> Generator[Lanes]:
    """What is kept of each set of images, then its others, in two places in turn: the one before is at work."""
    from fpmc.engine.simd.lanes import LANES

    dimension, start, turn = math.prod(source.shape), 0, 0
    count = max(LANES, size // dimension // LANES * LANES)                     # images of a stretch
    room = [np.empty((count // LANES, LANES * dimension), np.uint8) for _ in range(2)]
    for part in source.parts:
        low, high = max(0, begin - start), min(len(part), end - start)
        first, left = low, keep // dimension
        if low < high and (last := high if high - low <= left else (low + left) // LANES * LANES) > low:
            blocks = _kept(part, low // LANES, -(-last // LANES))
            yield _weighted(source, blocks, start, low // LANES * LANES, low, last)
            first, keep = last, keep - (last - low) * dimension
        for each in range(first, high, count):
            last = min(each + count, high)
            blocks = in_lanes(part.read(slice(each, last)), room[turn][: -(-(last - each) // LANES)])
            yield _weighted(source, blocks, start, each, each, last)
            turn = 1 - turn
        start += len(part)


def _weighted(source: Discrete, blocks: np.ndarray, start: int, base: int, first: int, last: int) -> Lanes:
    """Blocks from image `base` on of the set that begins at `start`; those from `first` to `last` have weight."""
    from fpmc.engine.simd.lanes import LANES, NOTHING, Stretch

    log_weights = np.full(len(blocks) * LANES, NOTHING, np.float32)
    log_weights[first - base : last - base] = 0.0
    if source.log_weights is not None:
        given = source.log_weights[start + first : start + last]
        log_weights[first - base : last - base] = given.clamp(min=NOTHING).numpy()
    return Lanes(Stretch(blocks, log_weights), start + base, first - base, last - base)


def _kept(part: ImageSet, first: int, last: int) -> np.ndarray:
    """The blocks from `first` to `last` of a set; no other images are read."""
    from fpmc.engine.simd.lanes import LANES

    begin, blocks = _blocks.get(part, (first, np.zeros((0, 0), np.uint8)))
    if not begin <= first <= last <= begin + len(blocks):
        _blocks.pop(part, None)                         # or both would be in memory
        width = LANES * math.prod(part.shape)
        begin, blocks, step = first, np.empty((last - first, width), np.uint8), max(1, STRETCH // width)
        for block in range(first, last, step):
            stop = min(block + step, last)
            pixels = part.read(slice(block * LANES, min(stop * LANES, len(part))))
            in_lanes(pixels, blocks[block - first : stop - first])
        _blocks[part] = begin, blocks
    return blocks[first - begin : last - begin]


def in_lanes(pixels: Tensor, blocks: np.ndarray) -> np.ndarray:
    """(n, C, H, W) to (blocks, d·LANES); the last block is filled up with zeros, which get no weight."""
    from fpmc.engine.simd import lanes

    lanes.lay_out(np.ascontiguousarray(pixels.flatten(1).numpy()), blocks)
    return blocks


def pixels_of(part: Lanes, shape: tuple[int, int, int]) -> Tensor:
    """The images that count, uint8 (n, C, H, W)."""
    blocks = torch.from_numpy(part.stretch.blocks).view(len(part.stretch.blocks), math.prod(shape), -1)
    return blocks.transpose(1, 2).flatten(0, 1)[part.begin : part.end].unflatten(1, shape)


def ahead(items: Iterator[T]) -> Generator[T]:
    """Each item, while a thread makes the next one; its errors are raised here, and it ends when this is closed."""
    with ThreadPoolExecutor(1, "ahead") as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item
