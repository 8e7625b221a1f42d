"""The fused kernel of translated sources (ELS; App. A.2.2): one image at a time, its columns in the vector lanes.

For a row y of z and a row y' of an image, s(i, j) is the squared difference of pixel i of the one and pixel j of the
other. A patch distance is a sum of s along its diagonals, over rows that go down together (dy = y' − y is fixed): first
down the rows (`Window`), then along the diagonal. Neighbouring columns of an image look alike, so where one of them is
out of reach of z's pixel, mostly all of them are, and no exponential is taken.

Distances are less log ν / scale, so that they alone order the images. `near` is the least distance a pixel has met so
far, and weights are exp(−scale·(distance − near)). Beyond `limit` a patch is passed over: so many nats below all that
the pixel has summed up, not only below its best patch. Vectors of sums are emptied into float64 after a few images.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import any_less, load_at, power, store_at
from fpmc.engine.simd.diagonals import step
from fpmc.engine.simd.vector import INLINE, KERNEL, LANES, entry, largest, load, splat, store, total

FAR = np.float32(1e30)                                  # no patch is there
BEYOND = np.float32(1e29)                               # no distance is larger
FLUSH = 4                                               # images between emptyings, a divisor of LANES
LOG2E = 1.4426950408889634


class Shifts(NamedTuple):
    """Patches that move."""

    channels: int
    height: int
    width: int
    size: int


class Query(NamedTuple):
    """Noisy images, and how their distances become weights."""

    z: np.ndarray                                       # float32 (B, d + LANES), 127.5 times the noisy images
    scale: float                                        # 1 / (2σ²·127.5²)
    margin: float                                       # cut / scale


class Patches(NamedTuple):
    """Of each pixel of each noisy image."""

    near: np.ndarray                                    # float32 (B, pixels), what weights refer to
    best: np.ndarray                                    # float32 (B, pixels), what a new `near` must be below
    limit: np.ndarray                                   # float32 (B, pixels)
    mass: np.ndarray                                    # float64 (B, pixels)
    moment: np.ndarray                                  # float64 (B, pixels·C)


class Room(NamedTuple):
    """To work in, for one image."""

    x: np.ndarray                                       # float32 (C·H·across,), u − 127.5, 0 beyond and before
    edge: np.ndarray                                    # float32 (across,): 0, and FAR beyond the image
    ring: np.ndarray                                    # float32 (size·plane,), s of the last rows
    ahead: np.ndarray                                   # float32 (plane,), their sums so far
    down: np.ndarray                                    # float32 (W·pitch,), sums over the rows of a patch, then FAR
    line: np.ndarray                                    # float32 (size·across,), s(i, i): for pixels that stay
    stay: np.ndarray                                    # float32 (2·across,), their distances, and room for sums
    sums: np.ndarray                                    # float32 (pixels·(1 + C)·LANES,), mass and moments in lanes


@njit(**KERNEL)
def room(q):
    """Empty."""
    k = q.size // 2
    across = (q.width + LANES - 1) // LANES * LANES
    pitch = across + (2 * k + LANES - 1) // LANES * LANES
    edge = np.zeros(across, np.float32)
    edge[q.width :] = FAR
    plane = q.width * across + 3 * LANES                # pages apart, planes would compete for the same lines of cache
    return Room(
        np.zeros(q.channels * q.height * across + 2 * LANES, np.float32)[LANES:], edge,
        np.zeros(q.size * plane, np.float32), np.zeros(plane, np.float32),
        np.full(q.width * pitch, FAR, np.float32),
        np.zeros(q.size * across, np.float32), np.zeros(2 * across, np.float32),
        np.zeros(q.height * q.width * (1 + q.channels) * LANES, np.float32),
    )


@njit(**KERNEL)
def finds(room):
    """Space for all that `meet` may find in a row: vectors of distances, and their places."""
    most = len(room.ahead)
    return np.empty(most + LANES, np.float32), np.empty(most // LANES * 2 + 2, np.int64)


@njit(**KERNEL)
def unlace(block, lane, q, x, across):
    """One image out of a block."""
    p = 0
    for line in range(q.channels * q.height):
        for i in range(q.width):
            x[line * across + i] = np.float32(block[p * LANES + lane]) - np.float32(127.5)
            p += 1


@njit(**KERNEL)
def refer(found, at, scale, margin, near, best, limit, mass, moment):
    """A patch is nearer than all before: mass and moments refer to it from now on; what they were multiplied with."""
    channels = len(moment) // len(mass)
    fade = 2.0 ** max(-1000.0, scale * LOG2E * (float(found) - float(near[at])))
    near[at], best[at] = found, found
    limit[at] = min(limit[at], np.float32(found + margin))
    mass[at] *= fade
    for c in range(at * channels, (at + 1) * channels):
        moment[c] *= fade
    return fade


@njit(**KERNEL)
def nearer(found, at, scale, margin, near, best, limit, mass, moment, sums):
    """`refer`, of sums in lanes, too."""
    channels = len(moment) // len(mass)
    fade = splat(np.float32(refer(found, at, scale, margin, near, best, limit, mass, moment)))
    for row in range(at * (1 + channels), (at + 1) * (1 + channels)):
        store(sums, row, load(sums, row) * fade)


@njit(**INLINE)
def meet(limit, first, lag, down, width, size, found, places):
    """Find the patches that are within the limits of a row's moving pixels: their distances and (i, j), how many.

    Whether one is found is hard to predict, so all are written and only those found are counted.
    """
    k, pitch, count = size // 2, len(down) // width, 0
    diagonal = pitch + 1
    for i in range(k, width - k):
        reach = splat(entry(limit, first + i) + lag)
        for j in range(0, width - 2 * k, LANES):
            e = (i - k) * pitch + j
            if size == 3:
                d = load_at(down, e) + load_at(down, e + diagonal) + load_at(down, e + 2 * diagonal)
            else:
                d = load_at(down, e)
                for _ in range(size // 2):
                    d = d + (load_at(down, e + diagonal) + load_at(down, e + 2 * diagonal))
                    e += 2 * diagonal
            store(found, count, d)
            places[2 * count] = i
            places[2 * count + 1] = j
            count += any_less(d, reach)
    return count


@njit(**INLINE)
def weigh(count, found, places, first, lag, steep, near, x, start, channel, channels, sums):
    """Take what was found into the sums of its pixels; `start` is where column 0 of patch centres is in x."""
    h, zero = 0, splat(np.float32(0))
    while h < count:
        i, row = entry(places, 2 * h), (first + entry(places, 2 * h)) * (1 + channels)
        close, stop = splat(entry(near, first + i) + lag), h
        m, r, g, b = zero, zero, zero, zero             # all that was found for one pixel, then into its sums
        while stop < count and entry(places, 2 * stop) == i:
            place = start + entry(places, 2 * stop + 1)
            w = power(splat(steep) * (close - load(found, stop)))
            m = m + w
            r = r + w * load_at(x, place)
            if channels == 3:
                g = g + w * load_at(x, place + channel)
                b = b + w * load_at(x, place + 2 * channel)
            else:
                for c in range(1, channels):
                    store(sums, row + 1 + c, load(sums, row + 1 + c) + w * load_at(x, place + c * channel))
            stop += 1
        store(sums, row, load(sums, row) + m)
        store(sums, row + 1, load(sums, row + 1) + r)
        if channels == 3:
            store(sums, row + 2, load(sums, row + 2) + g)
            store(sums, row + 3, load(sums, row + 3) + b)
        h = stop


@njit(**INLINE)
def improve(count, found, places, first, lag, scale, margin, near, best, limit, mass, moment, sums):
    """New `near`s, where something nearer was found."""
    for h in range(count):
        at = first + entry(places, 2 * h)
        d = load(found, h) - splat(lag)
        if any_less(d, splat(entry(best, at))):
            least = -largest(splat(np.float32(0)) - d)
            nearer(least, at, scale, margin, near, best, limit, mass, moment, sums)


@njit(**INLINE)
def straight(z, y, other, height, width, channels, x, edge, line, own):
    """line[own + i] = s(i, i) of row y of z and row `other` of the image; beyond the image whatever comes."""
    across, pixels = len(edge), height * width
    for j in range(0, across, LANES):
        a = load_at(edge, j)
        for c in range(channels):
            d = load_at(z, c * pixels + y * width + j) - load_at(x, (c * height + other) * across + j)
            a = a + d * d
        store_at(line, own + j, a)


@njit(**INLINE)
def remain(width, size, line, stay):
    """stay[i] = the distance of patches in one column, cut at the border, for the pixels that stay in their columns."""
    k, across = size // 2, len(stay) // 2
    for j in range(0, across, LANES):
        a = load_at(line, j)
        for r in range(1, size):
            a = a + load_at(line, r * across + j)
        store_at(stay, across + j, a)
    if width > 2 * k:
        left, right = np.float32(0), np.float32(0)
        for e in range(2 * k):                          # from both ends, so nothing is subtracted
            left += stay[across + e]
            right += stay[across + width - 1 - e]
            if e >= k:
                stay[e - k] = left
                stay[width - 1 - e + k] = right
        return
    for i in range(width):
        d = np.float32(0)
        for e in range(max(0, i - k), min(width, i + k + 1)):
            d += stay[across + e]
        stay[i] = d


@njit(**INLINE)
def weigh_straight(stay, first, lag, steep, scale, margin, near, best, limit, mass, moment, x, start, channel, width,
                   k, sums):
    """Take what the pixels of a row that stay in their columns see of a row of the image into their sums."""
    channels = len(moment) // len(mass)
    for n in range(min(2 * k, width)):
        i = n if n < k or width <= 2 * k else width - 2 * k + n
        at, d = first + i, entry(stay, i) - lag
        if d < entry(limit, at):
            if d < entry(best, at):
                nearer(d, at, scale, margin, near, best, limit, mass, moment, sums)
            w = largest(power(splat(steep * (entry(near, at) - d))))
            row = at * (1 + channels) * LANES
            sums[row] += w
            for c in range(channels):
                sums[row + (1 + c) * LANES] += w * entry(x, start + c * channel + i)


@njit(**KERNEL)
def image(offset, query, patches, b, q, room, found, places):
    """Take one image, under all its displacements, into the sums in lanes."""
    z, scale, margin = query.z[b], query.scale, query.margin
    near, best, limit = patches.near[b], patches.best[b], patches.limit[b]
    mass, moment = patches.mass[b], patches.moment[b]
    x, edge, ring, ahead, down = room.x, room.edge, room.ring, room.ahead, room.down
    line, stay, sums = room.line, room.stay, room.sums
    height, width, size, channels = q.height, q.width, q.size, q.channels
    across, k = len(edge), size // 2
    steep, lag, channel = np.float32(scale * LOG2E), np.float32(offset), height * across
    reach = max(0, height - 2 * k - 1)
    for dy in range(-reach, reach + 1):
        # a row that moves has its whole patch inside the image, here and there; one that stays may be cut
        begin, rows = max(0, -dy), height - abs(dy)
        if dy == 0:                                     # else the first answer comes after `size` rows
            ring[:] = 0
            line[:] = 0
        for u in range(rows + (k if dy == 0 else 0)):
            y, other, phase = begin + u, begin + u + dy, u % size
            inside, answers = u < rows, u >= (k if dy == 0 else 2 * k)
            at, start = (y - k) * width, (other - k) * across
            if width > 2 * k:
                step(z, y, other, u, inside, q, x, edge, ring, ahead, down)
                if answers:
                    count = meet(limit, at, lag, down, width, size, found, places)
                    improve(count, found, places, at, lag, scale, margin, near, best, limit, mass, moment, sums)
                    # places are where patches begin
                    weigh(count, found, places, at, lag, steep, near, x, start + k, channel, channels, sums)
            if inside:
                straight(z, y, other, height, width, channels, x, edge, line, phase * across)
            else:
                line[phase * across : (phase + 1) * across] = 0
            if answers and k > 0:
                remain(width, size, line, stay)
                weigh_straight(
                    stay, at, lag, steep, scale, margin, near, best, limit, mass, moment, x, start, channel, width, k,
                    sums,
                )


@njit(**KERNEL)
def empty(patches, b, q, sums):
    """Sums in lanes to float64, and what is then out of reach."""
    for at in range(q.height * q.width):
        row = at * (1 + q.channels)
        patches.mass[b, at] += total(load(sums, row))
        for c in range(q.channels):
            patches.moment[b, at * q.channels + c] += total(load(sums, row + 1 + c))
    sums[:] = 0


@njit(**KERNEL)
def tighten(query, patches, b):
    """What is so many nats below the whole sum may be passed over."""
    for at in range(patches.mass.shape[1]):
        if patches.mass[b, at] > 1:
            spread = query.margin - math.log(patches.mass[b, at]) / query.scale
            patches.limit[b, at] = min(patches.limit[b, at], np.float32(patches.near[b, at] + spread))


@njit(**KERNEL)
def shifts_posterior(blocks, log_weights, first, last, query, patches, q):
    """ELS: posterior sums over all images and all displacements a pixel may take (App. A.2.2); moment (B, d)."""
    own = room(q)
    across = len(own.edge)
    found, places = finds(own)
    for j in range(first, last):
        for start in range(0, LANES, FLUSH):
            for b in range(len(query.z)):
                for lane in range(start, start + FLUSH):
                    prior = log_weights[j * LANES + lane]
                    if prior > -BEYOND:
                        unlace(blocks[j], lane, q, own.x, across)
                        image(prior / query.scale, query, patches, b, q, own, found, places)
                empty(patches, b, q, own.sums)
                tighten(query, patches, b)


@njit(**KERNEL)
def shifts_weights(blocks, log_weights, first, last, query, patches, q, share, counted, shares, weights):
    """ELS, second pass: for every image what it has of each pixel's posterior, over all displacements.

    shares (B, N) is the sum of that over pixels, `counted` times each; weights (B, N, pixels·(1 + C)) has the posterior
    and its product with what the image shows, as moved. What has length 0 is not wanted.
    """
    own = room(q)
    found, places = finds(own)
    for n in range(first * LANES, last * LANES):
        if log_weights[n] <= -BEYOND:
            continue
        unlace(blocks[n // LANES], n % LANES, q, own.x, len(own.edge))
        for b in range(len(query.z)):
            image(log_weights[n] / query.scale, query, patches, b, q, own, found, places)
            whole = 0.0
            for at in range(q.height * q.width):
                row = at * (1 + q.channels)
                whole += counted[at] * share[b, at] * total(load(own.sums, row))
                if weights.shape[1]:
                    for c in range(1 + q.channels):
                        weights[b, n, row + c] = share[b, at] * total(load(own.sums, row + c))
            shares[b, n] = whole
            own.sums[:] = 0
