"""What the fused CPU kernels share: images in the vector lanes, one thread's share of the blocks at a time.

A block holds `LANES` images, dimension by dimension, so every instruction works on that many images whatever the
structure of q. Kernels take a range of blocks and running sums of their own: threads never share anything they write.
Bytes stay bytes in memory; in a kernel they are u − 127.5, exact in float32, and z is scaled alike. Two-dimensional
arrays of floats with `LANES` columns are passed flat.

The first pass keeps sums for each noisy image b and estimator ℓ (`Sums`). Where no image of a block comes within `cut`
of the largest logit, the block is passed over; that loses at most N·exp(−cut) of a posterior of N images. The second
pass makes weights of the posteriors, mixed by their responses, and delivers what is `Wanted` of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.fours import four_sums
from fpmc.engine.simd.sparse import EVERYTHING
from fpmc.engine.simd.vector import (
    KERNEL,
    LANES,
    add_totals,
    entry,
    exp,
    exp_one,
    largest,
    load,
    load_as_is,
    load_pixels,
    splat,
    store,
    total,
    transpose_bytes,
)

NOTHING = -1e30                                         # log 0, but finite: the kernels assume there are no infinities
BOTTOM = -5e29                                          # where `top` starts: above NOTHING, below any logit


class Stretch(NamedTuple):
    """Images in lanes, and their weights."""

    blocks: np.ndarray                                  # uint8 (blocks, d·LANES)
    log_weights: np.ndarray                             # float32 (blocks·LANES,), log ν, `NOTHING` where ν = 0


class Asked(NamedTuple):
    """Noisy images, and how their distances become logits."""

    z: np.ndarray                                       # float32 (B, d), 127.5 times the noisy images
    scale: np.float32                                   # 1 / (2σ²·127.5²)
    cut: np.float32


class Sums(NamedTuple):
    """Of the first pass."""

    ends: np.ndarray                                    # int64 (L + 1,): the slots of each estimator
    slots: np.ndarray                                   # int64 (S,): the dimension of each slot
    top: np.ndarray                                     # float32 (B, L), the largest logit so far
    mass: np.ndarray                                    # float32 (B, L), Σ exp(logit − top)
    moment: np.ndarray                                  # float32 (B, S), Σ exp(logit − top)(u − 127.5)
    alive: np.ndarray                                   # uint32 (B, blocks): bit k: group k did not pass the block over


class Norm(NamedTuple):
    """What makes posteriors of logits in the second pass."""

    top: np.ndarray                                     # float32 (B, L)
    share: np.ndarray                                   # float32 (B, L), 1 / mass
    alive: np.ndarray                                   # uint32 (B, blocks), as the first pass left it


class Wanted(NamedTuple):
    """What the second pass delivers; what has length 0 is not wanted."""

    answers: np.ndarray                                 # float32 (1 or groups, B, d), Σ weights·x
    counted: np.ndarray                                 # float32 (rows,), how much each row counts in a share
    shares: np.ndarray                                  # float32 (B, blocks·LANES)
    weights: np.ndarray                                 # float32 (B, blocks·rows·LANES)


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
    for p in range(len(x) // LANES):
        store(x, p, load_pixels(block, p))


@njit(**KERNEL)
def squares(z, x, s):
    """s = (z − x)², summed over the channels if s has fewer rows than x."""
    rows = len(s) // LANES
    for p in range(rows):
        d = splat(z[p]) - load_pixels(x, p)
        a = d * d
        for q in range(p + rows, len(z), rows):
            d = splat(z[q]) - load_pixels(x, q)
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
        y = load_pixels(x, p)
        a = y * (y - splat(np.float32(2) * z[p]))
        for q in range(p + rows, len(z), rows):
            y = load_pixels(x, q)
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
def row_sums(s, rows, target, prior, scale, floor):
    """target[row] = Σ values·s[places] for sparse rows, added to nothing, to the sum of s or to an earlier row.

    No values: places up to turns[row] count 1, those after it −1. Rows that go four at a time may end at a `floor`.
    """
    ends, turns, places, values, bases = rows.ends, rows.turns, rows.places, rows.values, rows.bases
    if len(turns) < rows.rows:
        four_sums(s, rows, target, prior, scale, floor)
        return
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
def all_sum(z, x, reference, target):
    """target[0] = Σ (z − x)² − reference over all dimensions, by parts of 64 as above.

    x unpacked, or in bytes, which are as they are: z is `CENTRE` more then, so that there is nothing to take away.

    What rounding takes from the sum of the parts is added to the next one (Kahan), so that what is near the reference
    keeps the digits in which images differ.
    """
    whole, lost = splat(-reference), splat(np.float32(0))
    for start in range(0, len(z), 64):
        a = splat(np.float32(0))
        b = splat(np.float32(0))
        p, stop = start, min(start + 64, len(z))
        while p + 2 <= stop:
            d = splat(z[p]) - load_as_is(x, p)
            a = a + d * d
            d = splat(z[p + 1]) - load_as_is(x, p + 1)
            b = b + d * d
            p += 2
        if p < stop:
            d = splat(z[p]) - load_as_is(x, p)
            a = a + d * d
        part = (a + b) - lost
        more = whole + part
        lost = (more - whole) - part
        whole = more
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
        k = first
        if last > first and slots[last - 1] - slots[first] == last - 1 - first:        # one after the other
            while k + 4 <= last:
                p = slots[k]
                a, b = weight * load(x, p), weight * load(x, p + 1)
                add_totals(moment, k, a, b, weight * load(x, p + 2), weight * load(x, p + 3))
                k += 4
        while k < last:
            moment[k] += total(weight * load(x, slots[k]))
            k += 1
    return alive


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
def deliver(mixed, x, group, b, j, wanted):
    """What is wanted of the weights (rows, LANES) that a block of images has."""
    rows = len(mixed) // LANES
    if len(wanted.answers):
        answer(mixed, x, wanted.answers[group, b])
    if len(wanted.counted):
        share = load(wanted.shares[b], j)
        for start in range(0, rows, 64):                # by parts, so that rounding does not pile up
            part = splat(np.float32(0))
            for q in range(start, min(start + 64, rows)):
                part = part + splat(wanted.counted[q]) * load(mixed, q)
            share = share + part
        store(wanted.shares[b], j, share)
    if wanted.weights.shape[1]:
        for q in range(rows):
            store(wanted.weights[b], j * rows + q, load(mixed, q))
