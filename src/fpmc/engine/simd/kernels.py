"""The fused kernels: posteriors of whole images, of squares and of sparse rows, and what is wanted of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.boxes import box, patches, spread
from fpmc.engine.simd.lanes import (
    all_sum,
    deliver,
    differences,
    everything,
    posterior,
    unpack,
    update,
)
from fpmc.engine.simd.sums import count, room_for, sums_of
from fpmc.engine.simd.vector import (
    CENTRE,
    KERNEL,
    LANES,
    exp,
    exp_one,
    largest,
    load,
    load_pixels,
    splat,
    store,
    total,
)


class Boxes(NamedTuple):
    """Squares of one or several sizes."""

    height: int
    width: int
    centre: bool                                        # without Σ z², which is large where the noise is
    scales: np.ndarray                                  # int64 (K, 6): where window 0 begins, size, stride, rows and
    around: np.ndarray                                  # columns of patches, first estimator; q outside, float32 (K,)


class Rows(NamedTuple):
    """Sparse rows of q over `span` dimensions: pixels where q is shared by the channels, or all."""

    span: int
    centre: bool                                        # likewise
    leaves: bool                                        # images that are too far to count, before all places are read
    rows: NamedTuple                                    # `sparse.Sparse` or `mirrors.Mirrors`
    kept: np.ndarray                                    # float32 (B, blocks, rows·LANES): distances, for the second
                                                        # pass; of length 0: not kept


@njit(**KERNEL)
def read_once(asked, sums):
    """A block is looked at once, by one noisy image that keeps no moments, so that it need not be unpacked."""
    return len(asked.z) == 1 and len(sums.slots) == 0


@njit(**KERNEL)
def one_posterior(stretch, first, last, asked, sums, q):
    """Posterior sums of q = 1 for one noisy image.

    Unpacking would cost more than it saves, and there is room in the cache for moments of every lane.
    """
    rows = len(sums.slots)
    lanes = np.zeros(rows * LANES, np.float32)
    s = np.empty(LANES, np.float32)
    top, mass, moment = sums.top[0, 0], sums.mass[0, 0], sums.moment[0]
    z = asked.z[0] + np.float32(CENTRE)                 # bytes are compared as they are
    for j in range(first, last):
        block = stretch.blocks[j]
        all_sum(z, block, q.reference, s)
        logit = load(stretch.log_weights, j) - splat(asked.scale) * load(s, 0)
        best = largest(logit)
        if best < top - asked.cut:
            continue
        sums.alive[0, j] = 1
        if best > top:
            fade = exp_one(top - best)
            mass *= fade
            moment *= fade
            for p in range(rows):
                store(lanes, p, splat(fade) * load(lanes, p))
            top = best
        weight = exp(logit - splat(top))
        mass += total(weight)
        for p in range(rows):                           # slots are all dimensions, in their order
            store(lanes, p, load(lanes, p) + weight * load_pixels(block, p))
    for p in range(rows):
        moment[p] += total(load(lanes, p))
    sums.top[0, 0], sums.mass[0, 0] = top, mass


@njit(**KERNEL)
def whole_posterior(stretch, first, last, asked, sums, q):
    """Posterior sums of the one estimator q = 1."""
    if len(asked.z) == 1:
        one_posterior(stretch, first, last, asked, sums, q)
        return
    x = np.empty(stretch.blocks.shape[1], np.float32)
    s = np.empty(LANES, np.float32)
    for j in range(first, last):
        unpack(stretch.blocks[j], x)
        for b in range(len(asked.z)):
            all_sum(asked.z[b], x, q.reference, s)
            prior = load(stretch.log_weights, j)
            sums.alive[b, j] = update(
                s, prior, asked.scale, x, asked.cut, sums.ends, sums.slots, sums.top[b], sums.mass[b], sums.moment[b]
            )


@njit(**KERNEL)
def whole_respond(stretch, first, last, asked, norm, q, r, wanted):
    """Weights r(j) p of whole images; r float32 (rows,)."""
    x = np.empty(stretch.blocks.shape[1], np.float32)
    s = np.empty(LANES, np.float32)
    mixed = np.empty(len(r) * LANES, np.float32)
    once, z = len(asked.z) == 1, asked.z[0] + np.float32(CENTRE)               # the same rounding as in the first pass
    for j in range(first, last):
        if not norm.alive[:, j].any():
            continue
        unpack(stretch.blocks[j], x)
        for b in range(len(asked.z)):
            if norm.alive[b, j] == 0:
                continue
            if once:
                all_sum(z, stretch.blocks[j], q.reference, s)
            else:
                all_sum(asked.z[b], x, q.reference, s)
            posterior(s, load(stretch.log_weights, j), asked.scale, asked.cut, norm.top[b], norm.share[b], s)
            for k in range(len(r)):
                store(mixed, k, splat(r[k]) * load(s, 0))
            deliver(mixed, x, 0, b, j, wanted)


@njit(**KERNEL)
def alike(scales, k, held):
    """Squares k stand where squares `held` stand, so that their box sums are the same."""
    return held >= 0 and (scales[k, :5] == scales[held, :5]).all()


@njit(**KERNEL)
def boxes_posterior(stretch, first, last, asked, sums, q):
    """Posterior sums of square patches of one or several sizes, from one map of squared differences.

    With q = `around` outside the patches, Σ q (z − x)² is (1 − around) times that over a patch, and around times that
    over the image, which is the same for all of them.
    """
    pixels = q.height * q.width
    x = np.empty(stretch.blocks.shape[1], np.float32)
    s = np.empty(pixels * LANES, np.float32)
    d = np.empty(pixels * LANES, np.float32)
    across = np.empty(pixels * LANES, np.float32)
    prefix = np.empty((max(q.height, q.width) + q.scales[:, 1].max()) * LANES, np.float32)
    wide, once = q.around.any(), read_once(asked, sums)
    for j in range(first, last):
        if not once:
            unpack(stretch.blocks[j], x)
        for b in range(len(asked.z)):
            if once:
                differences(asked.z[b], stretch.blocks[j], s, q.centre)
            else:
                differences(asked.z[b], x, s, q.centre)
            whole = everything(s) if wide else splat(np.float32(0))
            held = -1
            for k in range(len(q.scales)):              # one size at a time, so that its distances stay in the cache
                begin, size, stride, rows, columns, start = q.scales[k]
                stop = start + rows * columns
                if not alike(q.scales, k, held):
                    patches(s, q.height, q.width, begin, size, stride, d, rows, columns, across, prefix)
                    held = k
                prior = load(stretch.log_weights, j) - splat(asked.scale * q.around[k]) * whole
                if update(
                    d, prior, asked.scale * (np.float32(1) - q.around[k]), x, asked.cut, sums.ends[start:], sums.slots,
                    sums.top[b, start:stop], sums.mass[b, start:stop], sums.moment[b],
                ):
                    sums.alive[b, j] |= np.uint32(1 << k)


@njit(**KERNEL)
def boxes_respond(stretch, first, last, asked, norm, q, r, wanted):
    """Weights of square patches; r.owner: the patch that answers for each row, or none: all that cover a pixel.

    r.weights: float32 (K, pixels), of each size. Answers are (1, B, d), all sizes together, or (K, B, d), each alone.
    """
    together = len(wanted.answers) <= 1
    height, width = q.height, q.width
    pixels = height * width
    owned = len(r.owner)
    x = np.empty(stretch.blocks.shape[1], np.float32)
    s = np.empty(pixels * LANES, np.float32)
    mixed = np.empty(max(pixels, owned) * LANES, np.float32)
    d = np.empty(pixels * LANES, np.float32)
    p = np.empty(pixels * LANES, np.float32)
    spreading = np.empty(pixels * LANES, np.float32)
    across = np.empty(pixels * LANES, np.float32)
    prefix = np.empty((max(height, width) + q.scales[:, 1].max()) * LANES, np.float32)
    wide = q.around.any()
    for j in range(first, last):
        if not norm.alive[:, j].any():
            continue
        unpack(stretch.blocks[j], x)
        for b in range(len(asked.z)):
            if norm.alive[b, j] == 0:
                continue
            differences(asked.z[b], x, s, q.centre)
            whole = everything(s) if wide else splat(np.float32(0))
            held = -1
            mixed[:] = np.float32(0)
            for k in range(len(q.scales)):
                if norm.alive[b, j] >> np.uint32(k) & np.uint32(1) == 0:
                    continue
                begin, size, stride, rows, columns, start = q.scales[k]
                stop = start + rows * columns
                if not alike(q.scales, k, held):
                    patches(s, height, width, begin, size, stride, d, rows, columns, across, prefix)
                    held = k
                prior = load(stretch.log_weights, j) - splat(asked.scale * q.around[k]) * whole
                posterior(
                    d, prior, asked.scale * (np.float32(1) - q.around[k]), asked.cut, norm.top[b, start:stop],
                    norm.share[b, start:stop], p,
                )
                if owned:
                    for i in range(owned):
                        store(mixed, i, load(p, r.owner[i]))
                elif stride > 1:
                    spread(p, rows, columns, size, stride, r.weights[k], mixed, height, width, across)
                else:
                    back = 1 - size - begin             # where the first patch over pixel 0 begins
                    box(p, rows, columns, back, size, spreading, height, width, across, prefix)
                    for i in range(pixels):
                        store(mixed, i, load(mixed, i) + splat(r.weights[k, i]) * load(spreading, i))
                if not together:
                    deliver(mixed, x, k, b, j, wanted)
                    mixed[:] = np.float32(0)
            if together:
                deliver(mixed, x, 0, b, j, wanted)


class Answers(NamedTuple):
    """R of squares."""

    owner: np.ndarray                                   # int64 (rows,), or (0,)
    weights: np.ndarray                                 # float32 (K, pixels)


@njit(**KERNEL)
def rows_posterior(stretch, first, last, asked, sums, q):
    """Posterior sums of rows."""
    x = np.empty(stretch.blocks.shape[1], np.float32)
    s = np.empty(q.span * LANES, np.float32)
    room, once, keep = room_for(q.rows), read_once(asked, sums), len(q.kept) > 0
    floor = np.empty(count(q.rows) if q.leaves else 0, np.float32)
    for j in range(first, last):
        if not once:
            unpack(stretch.blocks[j], x)
        prior = load(stretch.log_weights, j)
        for b in range(len(asked.z)):
            if once:
                differences(asked.z[b], stretch.blocks[j], s, q.centre)
            else:
                differences(asked.z[b], x, s, q.centre)
            for row in range(len(floor)):
                floor[row] = sums.top[b, row] - asked.cut
            found = q.kept[b, j] if keep else room[0]
            sums_of(s, q.rows, (found, room[1], room[2]), prior, asked.scale, floor)
            sums.alive[b, j] = update(
                found, prior, asked.scale, x, asked.cut, sums.ends, sums.slots, sums.top[b], sums.mass[b],
                sums.moment[b],
            )


@njit(**KERNEL)
def rows_respond(stretch, first, last, asked, norm, q, r, wanted):
    """Weights of rows; r is given by output value, its places are estimators."""
    x = np.empty(stretch.blocks.shape[1], np.float32)
    s = np.empty(q.span * LANES, np.float32)
    room, mixing = room_for(q.rows), room_for(r)
    p, mixed, kept = room[0][: count(q.rows) * LANES], mixing[0][: count(r) * LANES], len(q.kept) > 0
    floor, none = np.empty(count(q.rows) if q.leaves else 0, np.float32), np.empty(0, np.float32)
    for j in range(first, last):
        if not norm.alive[:, j].any():
            continue
        unpack(stretch.blocks[j], x)
        prior = load(stretch.log_weights, j)
        for b in range(len(asked.z)):
            if norm.alive[b, j] == 0:
                continue
            if not kept:
                differences(asked.z[b], x, s, q.centre)
                for row in range(len(floor)):
                    floor[row] = norm.top[b, row] - asked.cut
                sums_of(s, q.rows, room, prior, asked.scale, floor)
            posterior(q.kept[b, j] if kept else p, prior, asked.scale, asked.cut, norm.top[b], norm.share[b], p)
            sums_of(p, r, mixing, prior, asked.scale, none)
            deliver(mixed, x, 0, b, j, wanted)
