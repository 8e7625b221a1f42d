"""Translated sources, the pixels that keep their row or their column (ELS; App. A.2.2), with images in the lanes.

There are few of them, so their distances are plain sums over their patches, cut at the border.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned, any_less, power
from fpmc.engine.simd.lanes import unpack
from fpmc.engine.simd.patch_sums import closer, empty
from fpmc.engine.simd.shifts import LOG2E
from fpmc.engine.simd.vector import KERNEL, entry, largest, load, splat, total

EMPTY = 8                                               # blocks between emptyings of the sums into float64


@njit(**KERNEL)
def offsets(at, length, k):
    """The displacements [from, to) along one axis, as `displacements` has them."""
    return (k - at, length - k - at) if k <= at < length - k else (0, 1)


@njit(**KERNEL)
def distance(z, x, lag, q, y, i, dy, dx):
    """Of the patch around (y, i) of z, cut at the border, to the same one of moved images."""
    k, pixels, a = q.size // 2, q.height * q.width, lag
    for c in range(q.channels):
        for row in range(max(0, y - k), min(q.height, y + k + 1)):
            line = c * pixels + row * q.width
            for e in range(line + max(0, i - k), line + min(q.width, i + k + 1)):
                d = splat(entry(z, e)) - load(x, e + dy * q.width + dx)
                a = a + d * d
    return a


@njit(**KERNEL)
def block(z, x, lag, q, query, near, best, limit, mass, moment, sums):
    """Take some images into the sums."""
    k, steep, zero = q.size // 2, np.float32(query.scale * LOG2E), splat(np.float32(0))
    for y in range(q.height):
        top, bottom = offsets(y, q.height, k)
        for i in range(q.width):
            if k <= y < q.height - k and k <= i < q.width - k:
                continue
            at = y * q.width + i
            left, right = offsets(i, q.width, k)
            for dy in range(top, bottom):
                for dx in range(left, right):
                    a = distance(z, x, lag, q, y, i, dy, dx)
                    if not any_less(a, splat(entry(limit, at))):
                        continue
                    if any_less(a, splat(entry(best, at))):
                        least = -largest(zero - a)
                        closer(least, at, query.scale, query.margin, near, best, limit, mass, moment, sums)
                    w = power(splat(steep) * (splat(entry(near, at)) - a))
                    row, there = at * (1 + q.channels), at + dy * q.width + dx
                    sums[row] += total(w)
                    for c in range(q.channels):
                        sums[row + 1 + c] += total(w * load(x, there + c * q.height * q.width))


@njit(**KERNEL)
def border_posterior(blocks, log_weights, first, last, query, patches, q):
    """ELS: posterior sums over all images and the displacements of these pixels; those of others stay empty."""
    x = aligned(blocks.shape[1])
    sums = np.zeros((len(query.z), q.height * q.width * (1 + q.channels)), np.float32)
    for j in range(first, last):
        unpack(blocks[j], x)
        lag = load(log_weights, j) * splat(np.float32(-1 / query.scale))
        for b in range(len(query.z)):
            block(
                query.z[b], x, lag, q, query, patches.near[b], patches.best[b], patches.limit[b], patches.mass[b],
                patches.moment[b], sums[b],
            )
            if (j - first) % EMPTY == EMPTY - 1 or j == last - 1:
                empty(query, patches, b, sums[b])
