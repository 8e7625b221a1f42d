"""Translated sources where noise is strong (ELS; App. A.2.2): each patch distance from the one before it.

Images are in the vector lanes. For rows that are dy apart, `down` has for every pixel i of a row of z and every dx the
squared differences summed over the rows of a patch: one row further, those of the new row are added and those of the
last one taken away. Along the columns it goes the same way, all dx one after the other, so that what a pixel sums up
stays in registers meanwhile. What is taken away leaves its rounding behind, which only the noise makes small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned, any_less, power
from fpmc.engine.simd.diagonals import INLINE
from fpmc.engine.simd.lanes import unpack
from fpmc.engine.simd.shifts import BEYOND, LOG2E, empty, nearer, tighten
from fpmc.engine.simd.vector import KERNEL, LANES, entry, largest, load, smaller, splat, store


class Room(NamedTuple):
    """To work in, for one block of images; rows of `LANES`."""

    x: np.ndarray                                       # float32 (d rows,), u − 127.5
    down: np.ndarray                                    # float32 (W·pitch rows,), pitch: all dx
    along: np.ndarray                                   # float32 (pitch rows,), over all columns of a patch
    sums: np.ndarray                                    # float32 (pixels·(1 + C) rows,), mass and moments


@njit(**KERNEL)
def room(q):
    """Empty."""
    pixels, pitch = q.height * q.width, 2 * (q.width - q.size) + 1
    return Room(
        aligned(q.channels * pixels * LANES), aligned(q.width * pitch * LANES), aligned(pitch * LANES),
        aligned(pixels * (1 + q.channels) * LANES),
    )


@njit(**KERNEL)
def renew(z, y, other, u, comes, q, own):
    """Number u: add the squares of row y of z and row `other` of the images if it `comes`, take away the last row's."""
    width, pixels, reach = q.width, q.height * q.width, q.width - q.size
    goes, here, there, last = u >= q.size, y * width, other * width, q.size * width
    x, down = own.x, own.down
    for i in range(width):
        at, first, stop = i * (2 * reach + 1) + reach, max(-reach, -i), min(reach, width - 1 - i) + 1
        if comes and goes and q.channels == 3:
            new, old = here + i, here + i - last
            r, g, b = splat(entry(z, new)), splat(entry(z, new + pixels)), splat(entry(z, new + 2 * pixels))
            e, f, h = splat(entry(z, old)), splat(entry(z, old + pixels)), splat(entry(z, old + 2 * pixels))
            for dx in range(first, stop):
                p = there + i + dx
                s = load(down, at + dx)
                d = r - load(x, p)
                s = s + d * d
                d = g - load(x, p + pixels)
                s = s + d * d
                d = b - load(x, p + 2 * pixels)
                s = s + d * d
                d = e - load(x, p - last)
                s = s - d * d
                d = f - load(x, p - last + pixels)
                s = s - d * d
                d = h - load(x, p - last + 2 * pixels)
                store(down, at + dx, s - d * d)
            continue
        for dx in range(first, stop):
            s = splat(np.float32(0))
            if u > 0:
                s = load(down, at + dx)
            for c in range(0, q.channels * pixels, pixels):
                if comes:
                    d = splat(entry(z, here + i + c)) - load(x, there + i + dx + c)
                    s = s + d * d
                if goes:
                    d = splat(entry(z, here + i + c - last)) - load(x, there + i + dx + c - last)
                    s = s - d * d
            store(down, at + dx, s)


@njit(**INLINE)
def add(sums, row, value):
    """To a row of sums."""
    store(sums, row, load(sums, row) + value)


@njit(**INLINE)
def move(down, i, low, stop, k, pitch, along):
    """Distances of pixel i of a row under all dx, numbers `low` to below `stop`, in `along`; the least in each lane."""
    least, this = splat(np.float32(BEYOND)), i * pitch
    fresh = stop if i == k else low + 1                 # from here on, a patch is one pixel further than one before
    for v in range(low, fresh):
        d = load(down, this - k * pitch + v)
        for e in range(1 - k, k + 1):
            d = d + load(down, this + e * pitch + v)
        store(along, v, d)
        least = smaller(least, d)
    comes, goes = this + k * pitch, this - (k + 1) * pitch
    for v in range(fresh, stop):
        d = load(along, v) + (load(down, comes + v) - load(down, goes + v))
        store(along, v, d)
        least = smaller(least, d)
    return least


@njit(**INLINE)
def weigh(along, low, stop, close, within, steep, x, start, pixels, sums, row, channels):
    """Take distances of a pixel within its limit into its sums; they are to patches around `start` of x, and on."""
    m, r, g, b = load(sums, row), load(sums, row + 1), splat(np.float32(0)), splat(np.float32(0))
    if channels == 3:
        g, b = load(sums, row + 2), load(sums, row + 3)
    close, steep = close * splat(steep), splat(steep)
    for v in range(low, stop):
        d = load(along, v)
        if any_less(d, within):
            w, place = power(close - steep * d), start + v - low
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
    k, width, channels, reach = q.size // 2, q.width, q.channels, q.width - q.size
    for i in range(k, width - k):
        at, low, stop = first + i, k - i + reach, width - k - i + reach
        least = move(own.down, i, low, stop, k, 2 * reach + 1, own.along) + lag
        if any_less(least, splat(entry(limit, at))):
            if any_less(least, splat(entry(best, at))):
                found = -largest(splat(np.float32(0)) - least)
                nearer(found, at, query.scale, query.margin, near, best, limit, mass, moment, own.sums)
            weigh(
                own.along, low, stop, splat(entry(near, at)) - lag, splat(entry(limit, at)) - lag,
                np.float32(query.scale * LOG2E), own.x, start + k, q.height * width, own.sums, at * (1 + channels),
                channels,
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
    k, height, width, reach, far = q.size // 2, q.height, q.width, q.width - q.size, q.height - q.size
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
                    d = d + load(own.down, (width - 1 - e if end else e) * (2 * reach + 1) + reach)
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
