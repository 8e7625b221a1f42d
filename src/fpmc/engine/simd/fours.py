"""Sums of soft rows, four at a time: what is read at a place is used four times.

Where all that is summed is positive, some of the places already bound a logit from above, so a block of images that is
too far from four estimators to count is left before all their places are read. Places come by weight, in stretches that
double (`sparse.Fours.by_weight`), and after each there is a look.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.sparse import FIRST, FOUR
from fpmc.engine.simd.vector import KERNEL, entry, larger, largest, load, splat, store

FAR = np.float32(1e30)                                  # the distance of images that were left


@njit(**KERNEL)
def four_sums(s, rows, target, prior, scale, floor):
    """target[row] = Σ values·s[places] for rows that go four at a time; places by two, so that sums need not wait.

    Where in no lane any of the four has prior − scale·sum above its `floor`, they are `FAR`; no floor: never.
    """
    ends, places, values = rows.ends, rows.places, rows.values
    for g in range(len(ends) - 1):
        a = b = c = d = splat(np.float32(0))
        i = j = k = m = splat(np.float32(0))
        row, first, last = FOUR * g, ends[g], ends[g + 1]
        e, stop = first, last
        if row + FOUR <= len(floor):
            stop = min(first + FIRST, last)
        near = True
        while near:
            while e + 2 <= stop:
                u, v, w = load(s, entry(places, e)), load(s, entry(places, e + 1)), FOUR * e
                a, i = a + splat(entry(values, w)) * u, i + splat(entry(values, w + 4)) * v
                b, j = b + splat(entry(values, w + 1)) * u, j + splat(entry(values, w + 5)) * v
                c, k = c + splat(entry(values, w + 2)) * u, k + splat(entry(values, w + 6)) * v
                d, m = d + splat(entry(values, w + 3)) * u, m + splat(entry(values, w + 7)) * v
                e += 2
            if stop == last:
                break
            by = splat(scale)
            best = larger(
                larger(splat(-entry(floor, row)) - by * (a + i), splat(-entry(floor, row + 1)) - by * (b + j)),
                larger(splat(-entry(floor, row + 2)) - by * (c + k), splat(-entry(floor, row + 3)) - by * (d + m)),
            )
            near = largest(prior + best) >= np.float32(0)
            stop = min(2 * stop - first, last)
        if not near:
            a = b = c = d = splat(FAR)
        elif e < last:
            u, w = load(s, entry(places, e)), FOUR * e
            a, b = a + splat(entry(values, w)) * u, b + splat(entry(values, w + 1)) * u
            c, d = c + splat(entry(values, w + 2)) * u, d + splat(entry(values, w + 3)) * u
        store(target, row, a + i)
        store(target, row + 1, b + j)
        store(target, row + 2, c + k)
        store(target, row + 3, d + m)
