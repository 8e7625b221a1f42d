"""Patches of images, wherever they are in memory, side by side in the vector lanes (ELS; App. A.2.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import copy_bytes, prefetch
from fpmc.engine.simd.vector import KERNEL, LANES, entry, load_pixels, store, transpose_bytes

CLUSTER = 64                                            # patches, four vectors


class Clusters(NamedTuple):
    """The patches of some images."""

    pixels: np.ndarray                                  # uint8 (N·H·W·C + LANES,), channels last
    places: np.ndarray                                  # int32 (clusters·CLUSTER,), first bytes of patches; −1: none
    low: np.ndarray                                     # float32 (clusters·features,)
    high: np.ndarray                                    # float32 (clusters·features,)


class Form(NamedTuple):
    """How a patch lies in an image."""

    channels: int
    width: int                                          # of the image
    size: int
    image: int                                          # bytes of an image


@njit(**KERNEL)
def gather(clusters, start, count, q, x, pitch):
    """x[d·pitch + n] = entry d of the patch at place start + n, u − 127.5; whatever comes where there is none."""
    line, down = q.size * q.channels, q.width * q.channels
    dimension = q.size * line
    wide = (dimension // LANES + 1) * LANES             # vectors may reach beyond the end of a patch
    patches, turned = np.zeros(LANES * (wide + LANES), np.uint8), np.empty(wide * LANES, np.uint8)
    for begin in range(0, count, LANES):
        for n in range(min(LANES, count - begin)):
            place = max(0, clusters.places[start + begin + n])
            for r in range(q.size):                     # what reaches beyond a line is written over by the next
                for e in range(0, line, LANES):
                    copy_bytes(clusters.pixels, place + r * down + e, patches, n * wide + r * line + e)
        for d in range(0, wide, LANES):
            transpose_bytes(patches, d, wide, turned, d)
        for d in range(dimension):
            store(x, (d * pitch + begin) // LANES, load_pixels(turned, d))


@njit(**KERNEL)
def announce(clusters, start, q):
    """The patches from `start` on will be gathered soon; they are anywhere in memory."""
    for n in range(start, start + CLUSTER):
        place = max(0, entry(clusters.places, n))
        for r in range(q.size):
            prefetch(clusters.pixels, place + r * q.width * q.channels)
