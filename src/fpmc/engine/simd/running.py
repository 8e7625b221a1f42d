"""For `shifts` where noise is strong: sums over a patch by what comes in and what goes out, whatever its size.

Displacements dx = j − i are in the vector lanes, so that a patch's columns are below each other. `skew` has, for every
pixel i of a row of z and every dx, the sum of s over the rows of a patch: one row further, the squares of the new row
are added and those of the last one taken away. Along the columns it goes the same way. What is taken away leaves its
rounding behind, which only the noise makes small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned, any_less, load_at, store_at
from fpmc.engine.simd.diagonals import INLINE
from fpmc.engine.simd.vector import KERNEL, LANES, entry, splat, store

FRONT = 2 * LANES                                       # of dx = −reach in a row of `skew`: vectors may begin before


class Skew(NamedTuple):
    """To work in."""

    sums: np.ndarray                                    # float32 (W·pitch,)
    along: np.ndarray                                   # float32 (pitch,), of all columns of a patch
    edge: np.ndarray                                    # float32 (W + 2·pitch,): 0 where centres may be, else FAR


@njit(**KERNEL)
def skewed(q, far):
    """Empty, or nothing at all where it is not needed."""
    k, width = q.size // 2, q.width if q.running else 0
    reach = max(0, width - 2 * k - 1)
    pitch = (FRONT + 2 * reach + 2 * LANES + LANES - 1) // LANES * LANES
    edge = np.full(width + 2 * pitch, far, np.float32)
    edge[pitch + k : pitch + width - k] = 0
    return Skew(aligned(width * pitch), aligned(pitch), edge)


@njit(**INLINE)
def renew(z, y, other, u, comes, q, x, across, sums):
    """Number u: add s of row y of z and row `other` of the image if it `comes`, take away that of `size` rows before.

    Four i and two vectors of j at a time; where there are fewer, some are done twice from the same sums.
    """
    pixels, width, height = q.height * q.width, q.width, q.height
    pitch, reach = len(sums) // width, max(0, width - 2 * (q.size // 2) - 1)
    goes, zero = u >= q.size, splat(np.float32(0))
    for i in range(0, width, 4):
        i1, i2, i3 = min(i + 1, width - 1), min(i + 2, width - 1), min(i + 3, width - 1)
        e0, e1 = FRONT + reach + i * (pitch - 1), FRONT + reach + i1 * (pitch - 1)
        e2, e3 = FRONT + reach + i2 * (pitch - 1), FRONT + reach + i3 * (pitch - 1)
        stop = min(across, (i3 + reach) // LANES * LANES + LANES)
        for j in range(max(0, i - reach) // LANES * LANES, stop, 2 * LANES):
            k = min(j + LANES, stop - LANES)
            a0, a1, a2, a3, b0, b1, b2, b3 = zero, zero, zero, zero, zero, zero, zero, zero
            if u > 0:
                a0, b0 = load_at(sums, e0 + j), load_at(sums, e0 + k)
                a1, b1 = load_at(sums, e1 + j), load_at(sums, e1 + k)
                a2, b2 = load_at(sums, e2 + j), load_at(sums, e2 + k)
                a3, b3 = load_at(sums, e3 + j), load_at(sums, e3 + k)
            for c in range(q.channels):
                if comes:
                    here, there = c * pixels + y * width, (c * height + other) * across
                    v, w = load_at(x, there + j), load_at(x, there + k)
                    s = splat(entry(z, here + i))
                    a0, b0 = a0 + (s - v) * (s - v), b0 + (s - w) * (s - w)
                    s = splat(entry(z, here + i1))
                    a1, b1 = a1 + (s - v) * (s - v), b1 + (s - w) * (s - w)
                    s = splat(entry(z, here + i2))
                    a2, b2 = a2 + (s - v) * (s - v), b2 + (s - w) * (s - w)
                    s = splat(entry(z, here + i3))
                    a3, b3 = a3 + (s - v) * (s - v), b3 + (s - w) * (s - w)
                if goes:
                    here, there = c * pixels + (y - q.size) * width, (c * height + other - q.size) * across
                    v, w = load_at(x, there + j), load_at(x, there + k)
                    s = splat(entry(z, here + i))
                    a0, b0 = a0 - (s - v) * (s - v), b0 - (s - w) * (s - w)
                    s = splat(entry(z, here + i1))
                    a1, b1 = a1 - (s - v) * (s - v), b1 - (s - w) * (s - w)
                    s = splat(entry(z, here + i2))
                    a2, b2 = a2 - (s - v) * (s - v), b2 - (s - w) * (s - w)
                    s = splat(entry(z, here + i3))
                    a3, b3 = a3 - (s - v) * (s - v), b3 - (s - w) * (s - w)
            store_at(sums, e0 + j, a0)
            store_at(sums, e0 + k, b0)
            store_at(sums, e1 + j, a1)
            store_at(sums, e1 + k, b1)
            store_at(sums, e2 + j, a2)
            store_at(sums, e2 + k, b2)
            store_at(sums, e3 + j, a3)
            store_at(sums, e3 + k, b3)


@njit(**INLINE)
def meet_running(limit, first, lag, skew, width, size, found, places):
    """`meet`, of sums in `skew`; places have the columns of centres."""
    sums, along, edge = skew.sums, skew.along, skew.edge
    k, pitch, count = size // 2, len(along), 0
    reach, known = max(0, width - 2 * k - 1), pitch
    for i in range(k, width - k):
        within = splat(entry(limit, first + i) + lag)
        low = FRONT + (k - i + reach) // LANES * LANES
        for v in range(low, FRONT + (width - k - 1 - i + reach) // LANES * LANES + 1, LANES):
            if v < known:                               # the first of its vectors
                d = load_at(sums, (i - k) * pitch + v)
                for r in range(i - k + 1, i + k + 1):
                    d = d + load_at(sums, r * pitch + v)
            else:
                d = load_at(along, v) + (load_at(sums, (i + k) * pitch + v) - load_at(sums, (i - k - 1) * pitch + v))
            store_at(along, v, d)
            j = i + v - FRONT - reach
            d = d + load_at(edge, pitch + j)
            store(found, count, d)
            places[2 * count] = i
            places[2 * count + 1] = j
            count += any_less(d, within)
        known = low
    return count
