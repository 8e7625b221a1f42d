"""Patches of a source sorted into clusters of alike ones (ELS; App. A.2.2): most are passed over unseen.

A cluster is bounded by a box in a few features of its patches: coordinates along orthonormal axes, and the norm of what
is left. For any two patches a and b, ‖a − b‖² ≥ Σ (coordinates of a − b)² + (norm left of a − norm left of b)², so what
a noisy patch lacks to the box is a lower bound of its distance to every patch inside. Where it is within the limit, the
distances are computed: by differences, as exactly as anywhere, or where the noise allows it by products, which are half
the work; then all distances here are without the norm of the noisy patch, as in `running`. Limits are those of
`shifts`; clusters come in random order, so that they tighten soon.

Limits are such that all patches might be just beyond them, and most are far beyond. So they take a tenth of what may be
passed over, and the rest is an account: what a noisy patch sums up fills it, and a cluster within the limit is passed
over all the same if the most it can hold is a small part of what is in the account, and is paid from it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned, any_less, if_less, lowest_bit, power, which_less
from fpmc.engine.simd.gathering import CLUSTER, announce, gather
from fpmc.engine.simd.patch_sums import closer, empty
from fpmc.engine.simd.shifts import FAR, LOG2E
from fpmc.engine.simd.vector import (
    INLINE,
    KERNEL,
    LANES,
    WIDE,
    add_totals,
    entry,
    larger,
    largest,
    load,
    smaller,
    splat,
    store,
    total,
)

AT_ONCE = 2 if WIDE else 1                              # noisy patches
EMPTY = 128                                             # clusters between emptyings of the sums into float64
LOOSE = np.float32(1.001)                               # limits are rounded up: rounding moves the features of a patch
ROUNDING = np.float32(0.03)                             # by e < 4e-5·127.5·√d, and (a + e)² ≤ 1.001 a² + 1001 e²
HIGHEST = np.float32(100)                               # power of two that a bound is cut at
PART = np.float32(1 / 64)                               # of an account that one cluster may take


class Asked(NamedTuple):
    """The patches of noisy images that move, and how their distances become weights."""

    z: np.ndarray                                       # float32 (B, patches·dimension); −2z for products
    features: np.ndarray                                # float32 (B, features·patches), patches filled up to LANES
    left_out: np.ndarray                                # float32 (B, patches, filled up), of distances: Σ z² or 0
    scale: float                                        # 1 / (2σ²·127.5²)
    margin: float                                       # cut / scale
    allowed: float                                      # share of a posterior that accounts get
    products: bool


@njit(**KERNEL)
def reached(low, high, at, features, left_out, limit, lag, loose, steep, near, account, found):
    """Find the noisy patches that must look into a cluster, by its box, how many; others in the limit pay for it."""
    padded, count, zero = len(limit), 0, splat(np.float32(0))
    rows, all_of = len(features) // padded, splat(np.float32(CLUSTER))
    for i in range(padded // LANES):
        bound = zero
        for f in range(rows):
            v = load(features, f * (padded // LANES) + i)
            lack = larger(splat(entry(low, at + f)) - v, v - splat(entry(high, at + f)))
            lack = larger(lack, zero)
            bound = bound + lack * lack
        left = load(left_out, i) + splat(lag)
        bits = which_less(bound, (load(limit, i) + left) * splat(LOOSE) + splat(loose))
        if bits == 0:
            continue
        least = (bound - splat(loose)) * splat(1 / LOOSE) - left
        most = all_of * power(smaller(splat(steep) * (load(near, i) - least), splat(HIGHEST)))
        has = load(account, i)
        bits &= which_less(has * splat(PART), most)
        store(account, i, has - if_less(most, has * splat(PART), most))
        while bits != 0:
            found[count] = i * LANES + lowest_bit(bits)
            bits &= bits - 1
            count += 1
    return count


@njit(**INLINE)
def shown(x, row, w0, w1, w2, w3):
    """Weights times row `row` of the patches."""
    return (w0 * load(x, 4 * row) + w1 * load(x, 4 * row + 1)) + (w2 * load(x, 4 * row + 2) + w3 * load(x, 4 * row + 3))


@njit(**KERNEL)
def norms(dimension, x, off):
    """Add those of the patches of a cluster."""
    for i in range(CLUSTER // LANES):
        a = load(off, i)
        for d in range(dimension):
            v = load(x, 4 * d + i)
            a = a + v * v
        store(off, i, a)


@njit(**KERNEL)
def compare(z, dimension, reach, count, x, off, q, query, near, best, limit, mass, moment, sums, account, second):
    """Take the patches of one cluster into the sums of the noisy patches that reach it.

    Distances of `AT_ONCE` noisy patches at a time: where there are registers for eight sums, four leave the processor
    waiting. By products they are without the norms of the noisy patches, and those of the cluster's are in `off`. (All
    in one function: to hand arrays over costs as much as the distances.)
    """
    steep, channels = np.float32(query.scale * LOG2E), q.channels
    centre, zero = q.size // 2 * (q.size + 1) * channels, splat(np.float32(0))
    for pair in range(0, count, AT_ONCE):
        here, there = entry(reach, pair) * dimension, entry(reach, min(pair + 1, count - 1)) * dimension
        a0, a1, a2, a3 = load(off, 0), load(off, 1), load(off, 2), load(off, 3)
        if WIDE:
            b0, b1, b2, b3 = a0, a1, a2, a3
            if query.products:
                for d in range(dimension):
                    v, w = splat(entry(z, here + d)), splat(entry(z, there + d))
                    x0, x1, x2, x3 = load(x, 4 * d), load(x, 4 * d + 1), load(x, 4 * d + 2), load(x, 4 * d + 3)
                    a0, a1, a2, a3 = a0 + v * x0, a1 + v * x1, a2 + v * x2, a3 + v * x3
                    b0, b1, b2, b3 = b0 + w * x0, b1 + w * x1, b2 + w * x2, b3 + w * x3
            else:
                for d in range(dimension):
                    v, w = splat(entry(z, here + d)), splat(entry(z, there + d))
                    x0, x1, x2, x3 = load(x, 4 * d), load(x, 4 * d + 1), load(x, 4 * d + 2), load(x, 4 * d + 3)
                    c0, c1, c2, c3 = v - x0, v - x1, v - x2, v - x3
                    a0, a1, a2, a3 = a0 + c0 * c0, a1 + c1 * c1, a2 + c2 * c2, a3 + c3 * c3
                    c0, c1, c2, c3 = w - x0, w - x1, w - x2, w - x3
                    b0, b1, b2, b3 = b0 + c0 * c0, b1 + c1 * c1, b2 + c2 * c2, b3 + c3 * c3
            store(second, 0, b0)
            store(second, 1, b1)
            store(second, 2, b2)
            store(second, 3, b3)
        elif query.products:
            for d in range(dimension):
                v = splat(entry(z, here + d))
                a0, a1 = a0 + v * load(x, 4 * d), a1 + v * load(x, 4 * d + 1)
                a2, a3 = a2 + v * load(x, 4 * d + 2), a3 + v * load(x, 4 * d + 3)
        else:
            for d in range(dimension):
                v = splat(entry(z, here + d))
                c0, c1 = v - load(x, 4 * d), v - load(x, 4 * d + 1)
                c2, c3 = v - load(x, 4 * d + 2), v - load(x, 4 * d + 3)
                a0, a1, a2, a3 = a0 + c0 * c0, a1 + c1 * c1, a2 + c2 * c2, a3 + c3 * c3
        for n in range(pair, min(pair + AT_ONCE, count)):
            if n > pair:
                a0, a1, a2, a3 = load(second, 0), load(second, 1), load(second, 2), load(second, 3)
            at = entry(reach, n)
            within = splat(entry(limit, at))
            if not (any_less(a0, within) | any_less(a1, within) | any_less(a2, within) | any_less(a3, within)):
                continue
            least = smaller(smaller(a0, a1), smaller(a2, a3))
            if any_less(least, splat(entry(best, at))):
                found = -largest(zero - least)
                account[at] *= closer(found, at, query.scale, query.margin, near, best, limit, mass, moment, sums)
            close = splat(entry(near, at))
            w0, w1 = power(splat(steep) * (close - a0)), power(splat(steep) * (close - a1))
            w2, w3 = power(splat(steep) * (close - a2)), power(splat(steep) * (close - a3))
            m = (w0 + w1) + (w2 + w3)
            if channels == 3:
                r, g = shown(x, centre, w0, w1, w2, w3), shown(x, centre + 1, w0, w1, w2, w3)
                add_totals(sums, at * 4, m, r, g, shown(x, centre + 2, w0, w1, w2, w3))
            else:
                sums[at * (1 + channels)] += total(m)
                for c in range(channels):
                    sums[at * (1 + channels) + 1 + c] += total(shown(x, centre + c, w0, w1, w2, w3))


@njit(**KERNEL)
def clusters_posterior(clusters, lags, first, last, query, patches, q):
    """ELS: posterior sums of the pixels that move over all patches of these clusters (App. A.2.2).

    lags (N,) are log ν / scale of the images.
    """
    batch, padded = patches.mass.shape
    dimension, features = q.size * q.size * q.channels, query.features.shape[1] // padded
    sums, account = np.zeros((batch, padded * (1 + q.channels)), np.float32), np.zeros((batch, padded), np.float32)
    x, off, second = aligned(dimension * CLUSTER), aligned(CLUSTER), aligned(CLUSTER)
    reach = np.empty(padded, np.int64)
    lag, loose, steep = lags.max(), ROUNDING * np.float32(dimension), np.float32(query.scale * LOG2E)
    for j in range(first, last):
        laid_out = False
        if j + 1 < last:
            announce(clusters, (j + 1) * CLUSTER, q)
        for b in range(batch):
            limit = patches.limit[b]
            count = reached(
                clusters.low, clusters.high, j * features, query.features[b], query.left_out[b], limit, lag, loose,
                steep, patches.near[b], account[b], reach,
            )
            if count == 0:
                continue
            if not laid_out:
                gather(clusters, j * CLUSTER, CLUSTER, q, x, CLUSTER)
                for n in range(CLUSTER):
                    place = clusters.places[j * CLUSTER + n]
                    off[n] = min(-lags[place // q.image], FAR) if place >= 0 else FAR
                if query.products:
                    norms(dimension, x, off)
                laid_out = True
            compare(
                query.z[b], dimension, reach, count, x, off, q, query, patches.near[b], patches.best[b], limit,
                patches.mass[b], patches.moment[b], sums[b], account[b], second,
            )
        if (j - first) % EMPTY == EMPTY - 1 or j == last - 1:
            for b in range(batch):
                for at in range(padded):
                    account[b, at] += np.float32(query.allowed) * sums[b, at * (1 + q.channels)]
                empty(query, patches, b, sums[b])
