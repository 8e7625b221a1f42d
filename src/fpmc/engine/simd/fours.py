"""Sums of soft rows, four at a time: what is read at a place is used four times.

Where all that is summed is positive, some of the places already bound a logit from above, so a block of images that is
too far from four estimators to count is left before all their places are read. Places come by weight, in stretches that
double (`sparse.Fours.by_weight`), and after each there is a look.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.sparse import FIRST, FOUR
from fpmc.engine.simd.vector import INLINE, KERNEL, WIDE, entry, larger, largest, load, splat, store

FAR = np.float32(1e30)                                  # the distance of images that were left


@njit(**INLINE)
def four_rows(s, places, values, first, last, start):
    """Σ values·s[start + places] over the places first … last, for each of four rows.

    Where there are registers for it, places go by two, so that sums need not wait.
    """
    a = b = c = d = splat(np.float32(0))
    e = first
    if WIDE:
        i = j = k = m = splat(np.float32(0))
        while e + 2 <= last:
            u, w = load(s, start + entry(places, e)), FOUR * e
            v = load(s, start + entry(places, e + 1))
            a, i = a + splat(entry(values, w)) * u, i + splat(entry(values, w + 4)) * v
            b, j = b + splat(entry(values, w + 1)) * u, j + splat(entry(values, w + 5)) * v
            c, k = c + splat(entry(values, w + 2)) * u, k + splat(entry(values, w + 6)) * v
            d, m = d + splat(entry(values, w + 3)) * u, m + splat(entry(values, w + 7)) * v
            e += 2
        a, b, c, d = a + i, b + j, c + k, d + m
    while e < last:
        u, w = load(s, start + entry(places, e)), FOUR * e
        a, b = a + splat(entry(values, w)) * u, b + splat(entry(values, w + 1)) * u
        c, d = c + splat(entry(values, w + 2)) * u, d + splat(entry(values, w + 3)) * u
        e += 1
    return a, b, c, d


@njit(**KERNEL)
def four_sums(s, rows, target, prior, scale, floor):
    """target[row] = Σ values·s[places] for rows that go four at a time, by parts so that rounding does not pile up.

    Where in no lane any of the four has prior − scale·sum above its `floor`, they are `FAR`; no floor: never.
    """
    ends, places, values = rows.ends, rows.places, rows.values
    zero, by = splat(np.float32(0)), splat(scale)
    for g in range(len(ends) - 1):
        row, first, last = FOUR * g, ends[g], ends[g + 1]
        look = first + FIRST if row + FOUR <= len(floor) else last + 1
        whole, whole_b, whole_c, whole_d = zero, zero, zero, zero
        e = first
        while e < last:
            stop = min(e + FIRST, last)
            a, b, c, d = four_rows(s, places, values, e, stop, 0)
            e, whole, whole_b, whole_c, whole_d = stop, whole + a, whole_b + b, whole_c + c, whole_d + d
            if e == look:
                look = 2 * look - first
                best = larger(
                    larger(splat(-entry(floor, row)) - by * whole, splat(-entry(floor, row + 1)) - by * whole_b),
                    larger(splat(-entry(floor, row + 2)) - by * whole_c, splat(-entry(floor, row + 3)) - by * whole_d),
                )
                if largest(prior + best) < np.float32(0):
                    whole = whole_b = whole_c = whole_d = splat(FAR)
                    break
        store(target, row, whole)
        store(target, row + 1, whole_b)
        store(target, row + 2, whole_c)
        store(target, row + 3, whole_d)
