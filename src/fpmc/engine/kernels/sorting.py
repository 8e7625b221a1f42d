"""All patches of a set of images, sorted into clusters of alike ones: made once, and kept with the images."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fpmc.engine.kernels.fused import share
from fpmc.images import ImageSet

AXES = 4                                                # of patches, beside the norm of what is left
LEAF = 4096                                             # patches sorted at a time, about
PIECE = 1 << 15                                         # at most
SAMPLE = 1 << 17                                        # patches that tell the axes, and where leaves end
_sorted: WeakKeyDictionary[ImageSet, tuple[tuple, Any, np.ndarray]] = WeakKeyDictionary()


def form_of(part: ImageSet, size: int) -> Any:
    """How a patch lies in an image."""
    from fpmc.engine.simd.gathering import Form

    channels, _, width = part.shape
    return Form(channels, width, size, math.prod(part.shape))


def sorted_patches(part: ImageSet, begin: int, end: int, size: int, threads: int) -> tuple[Any, np.ndarray]:
    """The patches of some images in clusters, and the axes of their features; the last ones made are kept."""
    key = begin, end, size
    known = _sorted.get(part)
    if known is None or known[0] != key:
        _sorted.pop(part, None)                         # one at a time: a schedule goes from size to size
        known = key, *_sort(part, begin, end, size, threads)
        _sorted[part] = known
    return known[1:]


def _sort(part: ImageSet, begin: int, end: int, size: int, threads: int) -> tuple[Any, np.ndarray]:
    """First into the leaves of a tree, which is grown of a sample, then each leaf into clusters, in random order."""
    from fpmc.engine.simd import splits
    from fpmc.engine.simd.gathering import CLUSTER, Clusters
    from fpmc.engine.simd.vector import LANES

    form, random, none = form_of(part, size), np.random.default_rng(0), np.zeros(0, np.float32)
    pixels = np.zeros((end - begin) * form.image + LANES, np.uint8)
    pixels[: -LANES] = part.read(slice(begin, end)).permute(0, 2, 3, 1).reshape(-1).numpy()
    places = _places(part, end - begin, size)
    leaves = 1 << max(0, math.ceil(math.log2(len(places) / LEAF)))
    sample = places if len(places) <= SAMPLE else places[random.integers(len(places), size=max(SAMPLE, 16 * leaves))]

    def unsorted(places: np.ndarray) -> Any:
        return Clusters(pixels, places, none, none)

    axes, feature, value = _halves(unsorted(sample), form, leaves)
    by_leaf, ends = _by_leaf(unsorted(places), form, axes, feature, value, threads)
    del places
    bounds = np.unique(np.concatenate([[0], ends, *(np.arange(a, b, PIECE) for a, b in zip([0, *ends], ends))]))
    filled = -(-np.diff(bounds) // CLUSTER)
    rank, before = random.permutation(filled.sum()), np.concatenate([[0], filled.cumsum()])
    target = np.empty(len(rank) * CLUSTER, np.int32)
    low, high = (np.empty(len(rank) * (len(axes) + 1), np.float32) for _ in range(2))

    def split(own: None, first: int, last: int) -> None:
        for n in range(first, last):
            to = rank[before[n] : before[n + 1]]
            splits.split(unsorted(by_leaf), bounds[n], bounds[n + 1], form, axes, to, target, low, high)

    share(split, [None] * threads, len(filled))
    return Clusters(pixels, target, low, high), axes


def _places(part: ImageSet, count: int, size: int) -> np.ndarray:
    """The first byte of every patch, channels last."""
    channels, height, width = part.shape
    image = np.arange(count, dtype=np.int32) * np.int32(math.prod(part.shape))
    y, x = (np.arange(length - size + 1, dtype=np.int32) * np.int32(channels) for length in (height, width))
    return (image[:, None, None] + y[:, None] * np.int32(width) + x).ravel()


def _halves(sample: Any, form: Any, leaves: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The axes along which patches have most of their energy, and the tree of halves."""
    from fpmc.engine.simd import splits
    from fpmc.engine.simd.gathering import gather
    from fpmc.engine.simd.vector import LANES

    count, dimension = len(sample.places), form.size**2 * form.channels
    pitch = -(-count // LANES) * LANES
    x = np.zeros(dimension * pitch, np.float32)
    gather(sample, 0, count, form, x, pitch)
    rows = x.reshape(dimension, pitch)[:, :count]
    axes = np.linalg.eigh((rows @ rows.T).astype(np.float64))[1][:, ::-1][:, :AXES]
    axes = np.ascontiguousarray(axes.T.astype(np.float32))
    features = np.empty((len(axes) + 1) * pitch, np.float32)
    splits.describe(x, pitch, count, axes, features)
    feature, value = np.zeros(leaves - 1, np.int64), np.zeros(leaves - 1, np.float32)
    splits.grow(features, pitch, np.arange(count), feature, value)
    return axes, feature, value


def _by_leaf(
    patches: Any, form: Any, axes: np.ndarray, feature: np.ndarray, value: np.ndarray, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    """Places in the order of their leaves, and where each leaf ends."""
    from fpmc.engine.simd import splits

    leaf, by_leaf = np.empty(len(patches.places), np.int32), np.empty_like(patches.places)

    def assign(own: None, first: int, last: int) -> None:
        splits.assign(patches, first, last, form, axes, feature, value, leaf)

    share(assign, [None] * threads, len(leaf))
    ends = np.bincount(leaf, minlength=len(feature) + 1).cumsum()
    splits.sort(patches.places, leaf, np.concatenate([[0], ends[:-1]]), by_leaf)
    return by_leaf, ends
