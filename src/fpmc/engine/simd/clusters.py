"""Patches of a source sorted into clusters of alike ones (ELS; App. A.2.2): most are passed over unseen.

A cluster is bounded by a box in a few features of its patches: coordinates along orthonormal axes, and the norm of what
is left. For any two patches a and b, ‖a − b‖² ≥ Σ (coordinates of a − b)² + (norm left of a − norm left of b)², so what
a noisy patch lacks to the box is a lower bound of its distance to every patch inside. Where it is within the limit, the
distances are computed, as exactly as anywhere. Limits are those of `shifts`; clusters come in random order, so that
they tighten soon.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned, any_less, lowest_bit, power, which_less
from fpmc.engine.simd.gathering import CLUSTER, announce, gather
from fpmc.engine.simd.patch_sums import closer, empty
from fpmc.engine.simd.shifts import FAR, LOG2E
from fpmc.engine.simd.vector import INLINE, KERNEL, LANES, add_totals, entry, larger, largest, load, splat, total

EMPTY = 128                                             # clusters between emptyings of the sums into float64
LOOSE = np.float32(1.001)                               # limits are rounded up: rounding moves the features of a patch
ROUNDING = np.float32(0.03)                             # by e < 4e-5·127.5·√d, and (a + e)² ≤ 1.001 a² + 1001 e²


class Asked(NamedTuple):
    """The patches of noisy images that move, and how their distances become weights."""

    z: np.ndarray                                       # float32 (B, patches·dimension)
    features: np.ndarray                                # float32 (B, features·patches), patches filled up to LANES
    scale: float                                        # 1 / (2σ²·127.5²)
    margin: float                                       # cut / scale


@njit(**KERNEL)
def reached(low, high, at, features, limit, lag, loose, found):
    """Find the noisy patches whose limits reach into the box of a cluster, how many."""
    padded, count, zero = len(limit), 0, splat(np.float32(0))
    rows = len(features) // padded
    for i in range(padded // LANES):
        bound = zero
        for f in range(rows):
            v = load(features, f * (padded // LANES) + i)
            lack = larger(splat(entry(low, at + f)) - v, v - splat(entry(high, at + f)))
            lack = larger(lack, zero)
            bound = bound + lack * lack
        bits = which_less(bound, (load(limit, i) + splat(lag)) * splat(LOOSE) + splat(loose))
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
def compare(z, dimension, reach, count, x, off, q, query, near, best, limit, mass, moment, sums):
    """Take the patches of one cluster into the sums of the noisy patches that reach it."""
    steep, channels = np.float32(query.scale * LOG2E), q.channels
    centre, zero = q.size // 2 * (q.size + 1) * channels, splat(np.float32(0))
    for n in range(count):
        at = entry(reach, n)
        a0, a1, a2, a3 = load(off, 0), load(off, 1), load(off, 2), load(off, 3)
        for d in range(dimension):
            v = splat(entry(z, at * dimension + d))
            d0, d1, d2, d3 = v - load(x, 4 * d), v - load(x, 4 * d + 1), v - load(x, 4 * d + 2), v - load(x, 4 * d + 3)
            a0 = a0 + d0 * d0
            a1 = a1 + d1 * d1
            a2 = a2 + d2 * d2
            a3 = a3 + d3 * d3
        within = splat(entry(limit, at))
        if not (any_less(a0, within) | any_less(a1, within) | any_less(a2, within) | any_less(a3, within)):
            continue
        least = zero - larger(larger(zero - a0, zero - a1), larger(zero - a2, zero - a3))
        if any_less(least, splat(entry(best, at))):
            closer(-largest(zero - least), at, query.scale, query.margin, near, best, limit, mass, moment, sums)
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
    sums = np.zeros((batch, padded * (1 + q.channels)), np.float32)
    x, off = aligned(dimension * CLUSTER), aligned(CLUSTER)
    reach = np.empty(padded, np.int64)
    most, loose = lags.max(), ROUNDING * np.float32(dimension)
    for j in range(first, last):
        laid_out = False
        if j + 1 < last:
            announce(clusters, (j + 1) * CLUSTER, q)
        for b in range(batch):
            limit = patches.limit[b]
            count = reached(clusters.low, clusters.high, j * features, query.features[b], limit, most, loose, reach)
            if count == 0:
                continue
            if not laid_out:
                gather(clusters, j * CLUSTER, CLUSTER, q, x, CLUSTER)
                for n in range(CLUSTER):
                    place = clusters.places[j * CLUSTER + n]
                    off[n] = min(-lags[place // q.image], FAR) if place >= 0 else FAR
                laid_out = True
            compare(
                query.z[b], dimension, reach, count, x, off, q, query, patches.near[b], patches.best[b], limit,
                patches.mass[b], patches.moment[b], sums[b],
            )
        if (j - first) % EMPTY == EMPTY - 1 or j == last - 1:
            for b in range(batch):
                empty(query, patches, b, sums[b])
