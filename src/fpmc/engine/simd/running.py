"""Translated sources where noise is strong (ELS; App. A.2.2): each patch distance from the one before it.

Images are in the vector lanes. Σ (z − x)² is Σ z², the same for all patches that a pixel is compared with, and
Σ x(x − 2z). So all distances here, those in `Patches` too, are less Σ z², and a pair of pixels costs one multiplication
for each channel. For rows that are dy apart, `down` has for every pixel i of a row of z and every dx
that sum over the rows of a patch: one row further, those of the new row are added and those of the last one taken away,
for four pixels of z at a time. Along the columns it goes the same way, all dx one after the other. What is taken away
leaves its rounding behind, which only the noise makes small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned, any_less, power
from fpmc.engine.simd.lanes import unpack
from fpmc.engine.simd.shifts import BEYOND, LOG2E, empty, nearer, tighten
from fpmc.engine.simd.vector import INLINE, KERNEL, LANES, entry, largest, load, smaller, splat, store

AT_ONCE = 4                                             # pixels of a row of z
SPARE = AT_ONCE - 1                                     # dx on either side that they compute without need


class Room(NamedTuple):
    """To work in, for one block of images; rows of `LANES`."""

    x: np.ndarray                                       # float32 (d rows,), u − 127.5
    change: np.ndarray                                  # float32 (W rows,), Σ x² that comes less that which goes
    down: np.ndarray                                    # float32 (W·pitch rows,), pitch: all dx
    along: np.ndarray                                   # float32 (pitch rows,), over all columns of a patch
    found: np.ndarray                                   # int64 (pitch,): which dx are within the limit in some image
    sums: np.ndarray                                    # float32 (pixels·(1 + C) rows,), mass and moments


@njit(**KERNEL)
def pitch_of(q):
    """How many dx a pixel of z has in `down`; 0 is in the middle."""
    return 2 * (q.width - q.size + SPARE) + 1


@njit(**KERNEL)
def room(q):
    """Empty."""
    pixels, pitch = q.height * q.width, pitch_of(q)
    return Room(
        aligned(q.channels * pixels * LANES), aligned(q.width * LANES), aligned(q.width * pitch * LANES),
        aligned(pitch * LANES), np.zeros(pitch, np.int64), aligned(pixels * (1 + q.channels) * LANES),
    )


@njit(**INLINE)
def change(other, comes, goes, q, own):
    """Σ x² over the channels of row `other` of the images, if it `comes`, less that of the row which `goes`."""
    pixels, there, last = q.height * q.width, other * q.width, q.size * q.width
    for j in range(q.width):
        a = splat(np.float32(0))
        for c in range(0, q.channels * pixels, pixels):
            if comes:
                x = load(own.x, there + j + c)
                a = a + x * x
            if goes:
                x = load(own.x, there + j + c - last)
                a = a - x * x
        store(own.change, j, a)


@njit(**INLINE)
def both(z, new, old, i, low, high, there, before, at, step, q, own, fresh):
    """down += x·(−2z) of a row that comes, less that of a row that goes, for four pixels i of z and columns low … high.

    fresh: the change of x² is added, too.
    """
    x, down, two = own.x, own.down, np.float32(-2)
    j1, j2, j3 = min(i + 1, q.width - 1) - i, min(i + 2, q.width - 1) - i, min(i + 3, q.width - 1) - i
    a, b = splat(two * entry(z, new)), splat(two * entry(z, new + j1))
    c, d = splat(two * entry(z, new + j2)), splat(two * entry(z, new + j3))
    e, f = splat(two * entry(z, old)), splat(two * entry(z, old + j1))
    g, h = splat(two * entry(z, old + j2)), splat(two * entry(z, old + j3))
    at1, at2, at3 = at + j1 * step, at + j2 * step, at + j3 * step
    for j in range(low, high):
        comes, goes = load(x, there + j), load(x, before + j)
        s0, s1, s2, s3 = load(down, at + j), load(down, at1 + j), load(down, at2 + j), load(down, at3 + j)
        if fresh:
            more = load(own.change, j)
            s0, s1, s2, s3 = s0 + more, s1 + more, s2 + more, s3 + more
        store(down, at + j, (s0 + a * comes) - e * goes)
        store(down, at1 + j, (s1 + b * comes) - f * goes)
        store(down, at2 + j, (s2 + c * comes) - g * goes)
        store(down, at3 + j, (s3 + d * comes) - h * goes)


@njit(**INLINE)
def colours(z, new, old, i, low, high, there, before, at, step, q, own):
    """`both` of three channels at once, for two pixels: half as much to read and write."""
    x, down, two, pixels = own.x, own.down, np.float32(-2), q.height * q.width
    n = min(i + 1, q.width - 1) - i
    a, b, c = splat(two * entry(z, new)), splat(two * entry(z, new + pixels)), splat(two * entry(z, new + 2 * pixels))
    d, e, f = splat(two * entry(z, old)), splat(two * entry(z, old + pixels)), splat(two * entry(z, old + 2 * pixels))
    new, old, on = new + n, old + n, at + n * step
    g, h, k = splat(two * entry(z, new)), splat(two * entry(z, new + pixels)), splat(two * entry(z, new + 2 * pixels))
    o, p, r = splat(two * entry(z, old)), splat(two * entry(z, old + pixels)), splat(two * entry(z, old + 2 * pixels))
    for j in range(low, high):
        more = load(own.change, j)
        s, t = load(down, at + j) + more, load(down, on + j) + more
        v = load(x, there + j)
        s, t = s + a * v, t + g * v
        v = load(x, there + pixels + j)
        s, t = s + b * v, t + h * v
        v = load(x, there + 2 * pixels + j)
        s, t = s + c * v, t + k * v
        v = load(x, before + j)
        s, t = s - d * v, t - o * v
        v = load(x, before + pixels + j)
        s, t = s - e * v, t - p * v
        v = load(x, before + 2 * pixels + j)
        store(down, at + j, s - f * v)
        store(down, on + j, t - r * v)


@njit(**KERNEL)
def renew(z, y, other, u, comes, q, own):
    """Number u: add what row y of z and row `other` of the images make, if it `comes`, take away the last row's."""
    width, pixels, reach, pitch = q.width, q.height * q.width, q.width - q.size, pitch_of(q)
    goes, last = u >= q.size, q.size * q.width
    change(other, comes, goes, q, own)
    for i in range(0, width, AT_ONCE):
        end = min(i + AT_ONCE, width)
        low, high = max(0, i - reach), min(width, end + reach)
        at = i * pitch + reach + SPARE - i              # of (i, column 0)
        if comes and goes and q.channels == 3:
            here, there = y * width + i, other * width
            colours(z, here, here - last, i, low, high, there, there - last, at, pitch - 1, q, own)
            if i + 2 < width:
                here, at = here + 2, at + 2 * (pitch - 1)
                colours(z, here, here - last, i + 2, low, high, there, there - last, at, pitch - 1, q, own)
            continue
        for c in range(q.channels):
            here, there = c * pixels + y * width + i, c * pixels + other * width
            if comes and goes:
                if c == 0:
                    both(z, here, here - last, i, low, high, there, there - last, at, pitch - 1, q, own, True)
                else:
                    both(z, here, here - last, i, low, high, there, there - last, at, pitch - 1, q, own, False)
                continue
            row, facing, sign = (here, there, -2) if comes else (here - last, there - last, 2)
            for n in range(end - i):
                factor = splat(np.float32(sign) * entry(z, row + n))
                place = at + n * (pitch - 1)
                for j in range(low, high):
                    s = splat(np.float32(0))
                    if u > 0 or c > 0:
                        s = load(own.down, place + j)
                    if c == 0:
                        s = s + load(own.change, j)
                    store(own.down, place + j, s + factor * load(own.x, facing + j))


@njit(**INLINE)
def add(sums, row, value):
    """To a row of sums."""
    store(sums, row, load(sums, row) + value)


@njit(**INLINE)
def move(down, i, low, stop, k, pitch, within, along, found):
    """Distances of pixel i of a row under all dx, numbers `low` to below `stop`, in `along`.

    The least in each lane, and how many are `within` a limit in some lane, which is written down without a branch:
    it could not be predicted.
    """
    least, this, count = splat(np.float32(BEYOND)), i * pitch, 0
    fresh = stop if i == k else low + 1                 # from here on, a patch is one pixel further than one before
    for v in range(low, fresh):
        d = load(down, this - k * pitch + v)
        for e in range(1 - k, k + 1):
            d = d + load(down, this + e * pitch + v)
        store(along, v, d)
        least = smaller(least, d)
        found[count] = v
        count += any_less(d, within)
    comes, goes = this + k * pitch, this - (k + 1) * pitch
    for v in range(fresh, stop):
        d = load(along, v) + (load(down, comes + v) - load(down, goes + v))
        store(along, v, d)
        least = smaller(least, d)
        found[count] = v
        count += any_less(d, within)
    return least, count


@njit(**INLINE)
def weigh(along, found, count, close, steep, x, start, pixels, sums, row, channels):
    """Take the distances that were found for a pixel into its sums; number v is to a patch around start + v of x."""
    m, r, g, b = load(sums, row), load(sums, row + 1), splat(np.float32(0)), splat(np.float32(0))
    if channels == 3:
        g, b = load(sums, row + 2), load(sums, row + 3)
    close, steep = close * splat(steep), splat(steep)
    for n in range(count):
        v = entry(found, n)
        w, place = power(close - steep * load(along, v)), start + v
        m = m + w
        r = r + w * load(x, place)
        if channels == 3:
            g = g + w * load(x, place + pixels)
            b = b + w * load(x, place + 2 * pixels)
        else:
            for c in range(1, channels):
                add(sums, row + 1 + c, w * load(x, place + c * pixels))
    store(sums, row, m)
    store(sums, row + 1, r)
    if channels == 3:
        store(sums, row + 2, g)
        store(sums, row + 3, b)


@njit(**KERNEL)
def slide(first, start, lag, q, query, near, best, limit, mass, moment, own):
    """The pixels of a row that move along it: number `first` is its first one, row `start` of x what it faces."""
    k, width, channels, pitch = q.size // 2, q.width, q.channels, pitch_of(q)
    for i in range(k, width - k):
        at, low, stop = first + i, k - i + pitch // 2, width - k - i + pitch // 2
        within = splat(entry(limit, at)) - lag
        least, count = move(own.down, i, low, stop, k, pitch, within, own.along, own.found)
        if count > 0:
            least = least + lag
            if any_less(least, splat(entry(best, at))):
                found = -largest(splat(np.float32(0)) - least)
                nearer(found, at, query.scale, query.margin, near, best, limit, mass, moment, own.sums)
            weigh(
                own.along, own.found, count, splat(entry(near, at)) - lag, np.float32(query.scale * LOG2E), own.x,
                start + k - low, q.height * width, own.sums, at * (1 + channels), channels,
            )


@njit(**INLINE)
def stay(d, i, first, start, q, query, near, best, limit, mass, moment, own):
    """Pixel i of a row, near one of its ends, which keeps its column, with distances d."""
    at, channels, zero = first + i, q.channels, splat(np.float32(0))
    if any_less(d, splat(entry(limit, at))):
        if any_less(d, splat(entry(best, at))):
            nearer(-largest(zero - d), at, query.scale, query.margin, near, best, limit, mass, moment, own.sums)
        w = power(splat(np.float32(query.scale * LOG2E)) * (splat(entry(near, at)) - d))
        add(own.sums, at * (1 + channels), w)
        for c in range(channels):
            add(own.sums, at * (1 + channels) + 1 + c, w * load(own.x, start + i + c * q.height * q.width))


@njit(**KERNEL)
def block(b, lag, q, query, patches, own):
    """Take a block of images, under all their displacements, into the sums in lanes of noisy image b."""
    z, near, best, limit = query.z[b], patches.near[b], patches.best[b], patches.limit[b]
    mass, moment = patches.mass[b], patches.moment[b]
    k, height, width, pitch, far = q.size // 2, q.height, q.width, pitch_of(q), q.height - q.size
    for dy in range(-far, far + 1):
        # a row that moves has its whole patch inside the image, here and there; one that stays may be cut
        begin, rows = max(0, -dy), height - abs(dy)
        for u in range(rows + (k if dy == 0 else 0)):
            y, other = begin + u, begin + u + dy
            renew(z, y, other, u, u < rows, q, own)
            if u < (k if dy == 0 else 2 * k):
                continue
            first, start = (y - k) * width, (other - k) * width
            slide(first, start, lag, q, query, near, best, limit, mass, moment, own)
            for end in range(2):                        # from both ends, so nothing is subtracted
                d = lag
                for e in range(2 * k):
                    d = d + load(own.down, (width - 1 - e if end else e) * pitch + pitch // 2)
                    if e >= k:
                        i = width - 1 - e + k if end else e - k
                        stay(d, i, first, start, q, query, near, best, limit, mass, moment, own)


@njit(**KERNEL)
def running_posterior(blocks, log_weights, first, last, query, patches, q):
    """ELS: posterior sums over all images and all displacements a pixel may take (App. A.2.2); moment (B, d)."""
    own = room(q)
    for j in range(first, last):
        unpack(blocks[j], own.x)
        lag = load(log_weights, j) * splat(np.float32(-1 / query.scale))
        for b in range(len(query.z)):
            block(b, lag, q, query, patches, own)
            empty(patches, b, q, own.sums)
            tighten(query, patches, b)


@njit(**KERNEL)
def running_weights(blocks, log_weights, first, last, query, patches, q, share, counted, shares, weights):
    """`shifts.shifts_weights`: a lane of the sums is an image."""
    own, rows = room(q), q.height * q.width * (1 + q.channels)
    for j in range(first, last):
        unpack(blocks[j], own.x)
        lag = load(log_weights, j) * splat(np.float32(-1 / query.scale))
        for b in range(len(query.z)):
            block(b, lag, q, query, patches, own)
            for lane in range(LANES):
                whole = 0.0
                for row in range(rows):
                    at, value = row // (1 + q.channels), own.sums[row * LANES + lane]
                    if row % (1 + q.channels) == 0:
                        whole += counted[at] * share[b, at] * value
                    if weights.shape[1]:
                        weights[b, j * LANES + lane, row] = share[b, at] * value
                shares[b, j * LANES + lane] = whole
            own.sums[:] = 0
