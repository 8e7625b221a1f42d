"""The fused CPU kernels: images in the vector lanes, one thread's share of the blocks at a time.

A block holds `LANES` images, dimension by dimension, so every instruction works on that many images whatever the
structure of q. Kernels take a range of blocks and running sums of their own: threads never share anything they write.
Bytes stay bytes in memory; in a kernel they are u − 127.5, exact in float32, and z is scaled alike.

Running sums per noisy image b and estimator ℓ: `top` (largest logit so far), `mass` Σ exp(logit − top), and for each
slot of the estimator (an output dimension it answers for) `moment` Σ exp(logit − top)(u − 127.5). Where no image of a
block comes within `cut` of top, the block is passed over; that loses at most N·exp(−cut) of a posterior of N images.

Two-dimensional arrays of floats with `LANES` columns are passed flat. Arguments that recur:
    blocks       uint8 (blocks, d·LANES)          log_weights  float32 (blocks·LANES,), log ν, `NOTHING` where ν = 0
    first, last  the range of blocks              z            float32 (B, d), 127.5 times the noisy images
    scale        1 / (2σ²·127.5²)                 slot_ends, slots   int32 (L + 1,), (S,): dimensions of each estimator
    alive        uint32 (B, blocks): bit k is set where some estimator of scale k did not pass the block over
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.boxes import box, patches, spread, windows
from fpmc.engine.sparse import EVERYTHING
from fpmc.engine.vector import (
    KERNEL,
    LANES,
    add_totals,
    entry,
    exp,
    exp_one,
    largest,
    load,
    load_bytes,
    splat,
    store,
    total,
    transpose_bytes,
)

NOTHING = -1e30                                         # log 0, but finite: the kernels assume there are no infinities
BOTTOM = -5e29                                          # where `top` starts: above NOTHING, below any logit


@njit(**KERNEL)
def lay_out(images, blocks):
    """Images (n, d) in lanes; what is missing to a whole block is 0."""
    dimension = images.shape[1]
    flat = images.reshape(-1)
    for j in range(len(blocks)):
        first = j * LANES
        count = min(LANES, len(images) - first)
        whole = dimension // LANES * LANES if count == LANES else 0
        for p in range(0, whole, LANES):
            transpose_bytes(flat, first * dimension + p, dimension, blocks[j], p)
        for p in range(whole, dimension):
            for lane in range(count):
                blocks[j, p * LANES + lane] = images[first + lane, p]
            for lane in range(count, LANES):
                blocks[j, p * LANES + lane] = 0


@njit(**KERNEL)
def unpack(block, x):
    """x = u − 127.5, (d, LANES)."""
    half = splat(np.float32(127.5))
    for p in range(len(x) // LANES):
        store(x, p, load_bytes(block, p) - half)


@njit(**KERNEL)
def squares(z, x, s):
    """s = (z − x)², summed over the channels if s has fewer rows than x."""
    rows = len(s) // LANES
    for p in range(rows):
        d = splat(z[p]) - load(x, p)
        a = d * d
        for q in range(p + rows, len(z), rows):
            d = splat(z[q]) - load(x, q)
            a = a + d * d
        store(s, p, a)


@njit(**KERNEL)
def differences(z, x, s, centre):
    """`squares`, or if `centre` without z², which all images share: s = (z − x)² − z² = x(x − 2z)."""
    if not centre:
        squares(z, x, s)
        return
    rows = len(s) // LANES
    for p in range(rows):
        y = load(x, p)
        a = y * (y - splat(np.float32(2) * z[p]))
        for q in range(p + rows, len(z), rows):
            y = load(x, q)
            a = a + y * (y - splat(np.float32(2) * z[q]))
        store(s, p, a)


@njit(**KERNEL)
def gathered(s, places, first, last):
    """Σ s[places] over a stretch of places, by parts of 64 so that rounding does not pile up."""
    whole = splat(np.float32(0))
    for start in range(first, last, 64):
        a = splat(np.float32(0))
        b = splat(np.float32(0))
        c = splat(np.float32(0))
        d = splat(np.float32(0))
        e, stop = start, min(start + 64, last)
        while e + 4 <= stop:
            a = a + load(s, entry(places, e))
            b = b + load(s, entry(places, e + 1))
            c = c + load(s, entry(places, e + 2))
            d = d + load(s, entry(places, e + 3))
            e += 4
        while e < stop:
            a = a + load(s, entry(places, e))
            e += 1
        whole = whole + ((a + b) + (c + d))
    return whole


@njit(**KERNEL)
def everything(s):
    """Σ s over all rows, by parts of 64 so that rounding does not pile up."""
    whole = splat(np.float32(0))
    for start in range(0, len(s) // LANES, 64):
        part = splat(np.float32(0))
        for p in range(start, min(start + 64, len(s) // LANES)):
            part = part + load(s, p)
        whole = whole + part
    return whole


@njit(**KERNEL)
def alike(scales, k, held):
    """Squares k stand where squares `held` stand, so that their box sums are the same."""
    return held >= 0 and (scales[k, :5] == scales[held, :5]).all()


@njit(**KERNEL)
def row_sums(s, ends, turns, places, values, bases, target):
    """target[row] = Σ values·s[places] for sparse rows, added to nothing, to the sum of s or to an earlier row.

    No values: places up to turns[row] count 1, those after it −1.
    """
    known, all_of_it = False, splat(np.float32(0))
    for row in range(len(ends) - 1):
        e, turn, stop, base = ends[row], turns[row], ends[row + 1], entry(bases, row)
        if len(values) == 0:
            whole = gathered(s, places, e, turn)
            if turn < stop:
                whole = whole - gathered(s, places, turn, stop)
        else:
            whole = splat(np.float32(0))
            other = splat(np.float32(0))
            while e + 2 <= stop:
                whole = whole + splat(entry(values, e)) * load(s, entry(places, e))
                other = other + splat(entry(values, e + 1)) * load(s, entry(places, e + 1))
                e += 2
            if e < stop:
                whole = whole + splat(entry(values, e)) * load(s, entry(places, e))
            whole = whole + other
        if base >= 0:
            whole = whole + load(target, base)
        elif base == EVERYTHING:
            if not known:
                known, all_of_it = True, everything(s)
            whole = whole + all_of_it
        store(target, row, whole)


@njit(**KERNEL)
def all_sum(z, x, target):
    """target[0] = Σ (z − x)² over all dimensions, by parts of 64 so that rounding does not pile up."""
    whole = splat(np.float32(0))
    for start in range(0, len(z), 64):
        a = splat(np.float32(0))
        b = splat(np.float32(0))
        p, stop = start, min(start + 64, len(z))
        while p + 2 <= stop:
            d = splat(z[p]) - load(x, p)
            a = a + d * d
            d = splat(z[p + 1]) - load(x, p + 1)
            b = b + d * d
            p += 2
        if p < stop:
            d = splat(z[p]) - load(x, p)
            a = a + d * d
        whole = whole + (a + b)
    store(target, 0, whole)


@njit(**KERNEL)
def update(distances, prior, scale, x, cut, slot_ends, slots, top, mass, moment):
    """Take one block into the sums of all estimators, logit = prior − scale·distance; False if all passed it over."""
    alive = False
    for estimator in range(len(top)):                   # in here, because a call would cost more than its body
        logit = prior - splat(scale) * load(distances, estimator)
        best = largest(logit)
        t = top[estimator]
        if best < t - cut:
            continue
        alive = True
        first, last = slot_ends[estimator], slot_ends[estimator + 1]
        if best > t:
            fade = exp_one(t - best)
            mass[estimator] *= fade
            for k in range(first, last):
                moment[k] *= fade
            t = best
            top[estimator] = t
        weight = exp(logit - splat(t))
        mass[estimator] += total(weight)
        for k in range(first, last):
            moment[k] += total(weight * load(x, slots[k]))
    return alive


@njit(**KERNEL)
def full_posterior(blocks, log_weights, first, last, z, scale, cut, slot_ends, slots, top, mass, moment, alive):
    """Posterior sums of the one estimator q = 1."""
    x = np.empty(blocks.shape[1], np.float32)
    s = np.empty(LANES, np.float32)
    for j in range(first, last):
        unpack(blocks[j], x)
        for b in range(len(z)):
            all_sum(z[b], x, s)
            prior = load(log_weights, j)
            alive[b, j] = update(s, prior, scale, x, cut, slot_ends, slots, top[b], mass[b], moment[b])


@njit(**KERNEL)
def boxes_posterior(
    blocks, log_weights, first, last, z, scale, cut, slot_ends, slots, top, mass, moment, alive,
    height, width, scales, around,
):
    """Posterior sums of square patches of one or several sizes, from one map of squared differences.

    scales: (K, 6), for each size where window 0 begins, size, stride, rows and columns of patches, first estimator.
    around: float32 (K,), q outside the patches: Σ q (z − x)² is (1 − around) times that over a patch, and around times
    that over the image, which is the same for all of them.
    """
    pixels = height * width
    x = np.empty(blocks.shape[1], np.float32)
    s = np.empty(pixels * LANES, np.float32)
    d = np.empty(pixels * LANES, np.float32)
    across = np.empty(pixels * LANES, np.float32)
    prefix = np.empty((max(height, width) + scales[:, 1].max()) * LANES, np.float32)
    wide = around.any()
    for j in range(first, last):
        unpack(blocks[j], x)
        for b in range(len(z)):
            squares(z[b], x, s)
            whole = everything(s) if wide else splat(np.float32(0))
            held = -1
            for k in range(len(scales)):                # one size at a time, so that its distances stay in the cache
                begin, size, stride, rows, columns, start = scales[k]
                stop = start + rows * columns
                if not alike(scales, k, held):
                    patches(s, height, width, begin, size, stride, d, rows, columns, across, prefix)
                    held = k
                prior = load(log_weights, j) - splat(scale * around[k]) * whole
                if update(
                    d, prior, scale * (np.float32(1) - around[k]), x, cut, slot_ends[start:], slots,
                    top[b, start:stop], mass[b, start:stop], moment[b],
                ):
                    alive[b, j] |= np.uint32(1 << k)


@njit(**KERNEL)
def rows_posterior(
    blocks, log_weights, first, last, z, scale, cut, slot_ends, slots, top, mass, moment, alive,
    span, centre, ends, turns, places, values, bases,
):
    """Posterior sums of sparse rows over `span` dimensions: pixels where q is shared by the channels, or all.

    centre: without Σ q z², which is large where the noise is and the same for every image.
    """
    x = np.empty(blocks.shape[1], np.float32)
    s = np.empty(span * LANES, np.float32)
    distances = np.empty((len(ends) - 1) * LANES, np.float32)
    for j in range(first, last):
        unpack(blocks[j], x)
        for b in range(len(z)):
            differences(z[b], x, s, centre)
            row_sums(s, ends, turns, places, values, bases, distances)
            prior = load(log_weights, j)
            alive[b, j] = update(distances, prior, scale, x, cut, slot_ends, slots, top[b], mass[b], moment[b])


@njit(**KERNEL)
def posterior(distances, prior, scale, cut, top, share, target):
    """target = exp(logit − top)·share, and 0 where the whole block is below the cut; may be where the distances are."""
    for estimator in range(len(top)):
        logit = prior - splat(scale) * load(distances, estimator)
        t = top[estimator]
        if largest(logit) < t - cut:
            store(target, estimator, splat(np.float32(0)))
        else:
            store(target, estimator, exp(logit - splat(t)) * splat(share[estimator]))


@njit(**KERNEL)
def answer(mixed, x, result):
    """result += Σ over images of mixed·x; `mixed` is shared by the channels if it has fewer rows than x."""
    rows = len(mixed) // LANES
    fours = rows // 4 * 4
    for p in range(0, fours, 4):
        a, b, c, d = load(mixed, p), load(mixed, p + 1), load(mixed, p + 2), load(mixed, p + 3)
        for q in range(p, len(result), rows):
            add_totals(result, q, a * load(x, q), b * load(x, q + 1), c * load(x, q + 2), d * load(x, q + 3))
    for p in range(fours, rows):
        for q in range(p, len(result), rows):
            result[q] += total(load(mixed, p) * load(x, q))


@njit(**KERNEL)
def boxes_respond(
    blocks, log_weights, first, last, z, scale, cut, top, share, alive, result,
    height, width, scales, around, weights,
):
    """Σ_ℓ r_ℓ Σ_x p_ℓ(x) x for patches of one or several sizes, r = q times a weight (K, pixels); share is 1 / mass.

    result is (1, B, d), all sizes together, or (K, B, d), each on its own.
    """
    together = len(result) == 1
    pixels = height * width
    x = np.empty(blocks.shape[1], np.float32)
    s = np.empty(pixels * LANES, np.float32)
    mixed = np.empty(pixels * LANES, np.float32)
    d = np.empty(pixels * LANES, np.float32)
    p = np.empty(pixels * LANES, np.float32)
    spreading = np.empty(pixels * LANES, np.float32)
    across = np.empty(pixels * LANES, np.float32)
    prefix = np.empty((max(height, width) + scales[:, 1].max()) * LANES, np.float32)
    wide = around.any()
    for j in range(first, last):
        if not alive[:, j].any():
            continue
        unpack(blocks[j], x)
        for b in range(len(z)):
            if alive[b, j] == 0:
                continue
            squares(z[b], x, s)
            whole = everything(s) if wide else splat(np.float32(0))
            held = -1
            mixed[:] = np.float32(0)
            for k in range(len(scales)):
                if alive[b, j] >> np.uint32(k) & np.uint32(1) == 0:
                    continue
                begin, size, stride, rows, columns, start = scales[k]
                stop = start + rows * columns
                if not alike(scales, k, held):
                    patches(s, height, width, begin, size, stride, d, rows, columns, across, prefix)
                    held = k
                prior = load(log_weights, j) - splat(scale * around[k]) * whole
                posterior(
                    d, prior, scale * (np.float32(1) - around[k]), cut, top[b, start:stop], share[b, start:stop], p
                )
                if stride > 1:
                    spread(p, rows, columns, size, stride, weights[k], mixed, height, width, across)
                else:
                    back = 1 - size - begin             # where the first patch over pixel 0 begins
                    box(p, rows, columns, back, size, spreading, height, width, across, prefix)
                    for q in range(pixels):
                        store(mixed, q, load(mixed, q) + splat(weights[k, q]) * load(spreading, q))
                if not together:
                    answer(mixed, x, result[k, b])
                    mixed[:] = np.float32(0)
            if together:
                answer(mixed, x, result[0, b])


@njit(**KERNEL)
def rows_respond(
    blocks, log_weights, first, last, z, scale, cut, top, share, alive, result,
    span, centre, ends, turns, places, values, bases, r_ends, r_turns, r_places, r_values, r_bases,
):
    """Σ_ℓ r_ℓ Σ_x p_ℓ(x) x for sparse rows; r by output dimension: r_ends (dimensions + 1,), places are estimators."""
    x = np.empty(blocks.shape[1], np.float32)
    s = np.empty(span * LANES, np.float32)
    p = np.empty((len(ends) - 1) * LANES, np.float32)
    mixed = np.empty((len(r_ends) - 1) * LANES, np.float32)
    for j in range(first, last):
        if not alive[:, j].any():
            continue
        unpack(blocks[j], x)
        for b in range(len(z)):
            if alive[b, j] == 0:
                continue
            differences(z[b], x, s, centre)
            row_sums(s, ends, turns, places, values, bases, p)
            posterior(p, load(log_weights, j), scale, cut, top[b], share[b], p)
            row_sums(p, r_ends, r_turns, r_places, r_values, r_bases, mixed)
            answer(mixed, x, result[0, b])


@njit(**KERNEL)
def shifts_posterior(
    blocks, log_weights, first, last, z, scale, cut, top, mass, moment, channels, height, width, size,
):
    """ELS: posterior sums over all images and all displacements a pixel may take (App. A.2.2); moment (B, d)."""
    pixels = height * width
    k = size // 2
    reach_y, reach_x = max(0, height - 2 * k - 1), max(0, width - 2 * k - 1)
    x = np.empty(blocks.shape[1], np.float32)
    s = np.empty(pixels * LANES, np.float32)
    across = np.empty(pixels * LANES, np.float32)
    prefix = np.empty((max(height, width) + size) * LANES, np.float32)
    for j in range(first, last):
        unpack(blocks[j], x)
        for b in range(len(z)):
            for dy in range(-reach_y, reach_y + 1):
                # a pixel that moves has its whole patch inside the image, here and there; one that stays may be cut
                top_row = 0 if dy == 0 else k + max(0, -dy)
                rows = height if dy == 0 else height - 2 * k - abs(dy)
                edge_y = 0 if dy == 0 else k
                for dx in range(-reach_x, reach_x + 1):
                    left = 0 if dx == 0 else k + max(0, -dx)
                    columns = width if dx == 0 else width - 2 * k - abs(dx)
                    edge_x = 0 if dx == 0 else k
                    wide, high = columns + 2 * edge_x, rows + 2 * edge_y
                    for y in range(high):
                        here = (top_row - edge_y + y) * width + left - edge_x
                        there = here + dy * width + dx
                        for i in range(wide):
                            d = splat(z[b, here + i]) - load(x, there + i)
                            a = d * d
                            for c in range(1, channels):
                                d = splat(z[b, here + i + c * pixels]) - load(x, there + i + c * pixels)
                                a = a + d * d
                            store(s, y * wide + i, a)
                        windows(s, y * wide, 1, wide, edge_x - k, size, across, y * columns, 1, columns, prefix)
                    for i in range(columns):
                        windows(across, i, columns, high, edge_y - k, size, s, i, columns, rows, prefix)
                    for y in range(rows):
                        for i in range(columns):
                            pixel = (top_row + y) * width + left + i
                            logit = load(log_weights, j) - splat(scale) * load(s, y * columns + i)
                            best = largest(logit)
                            t = top[b, pixel]
                            if best < t - cut:
                                continue
                            if best > t:
                                fade = exp_one(t - best)
                                t = best
                                top[b, pixel] = t
                                mass[b, pixel] *= fade
                                for c in range(channels):
                                    moment[b, pixel + c * pixels] *= fade
                            weight = exp(logit - splat(t))
                            mass[b, pixel] += total(weight)
                            for c in range(channels):
                                there = pixel + dy * width + dx + c * pixels
                                moment[b, pixel + c * pixels] += total(weight * load(x, there))
