"""Sums over square patches and their transpose, for images in the vector lanes (see `lanes`).

Arrays are flat, with `LANES` columns; `across` and `prefix` are room to work in, as large as the image and as a line.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.vector import KERNEL, load, splat, store


@njit(**KERNEL)
def windows(source, start, stride, count, first, width, target, begin, step, outputs, prefix):
    """target[begin + j·step] = Σ source[start + i·stride], i from j + first, `width` long, cut to 0 ≤ i < count.

    Sums from both ends of stretches of `width`, put together: three additions for each output whatever the width, and
    no subtraction, so no digit is lost.
    """
    zero = splat(np.float32(0))
    ahead = zero
    phase = 0
    for u in range(outputs + width - 1):                # u is position i − first of the padded line
        if phase == width:
            ahead, phase = zero, 0
        i = u + first
        if 0 <= i < count:
            ahead = ahead + load(source, start + i * stride)
        store(prefix, u, ahead)
        phase += 1
    behind = zero
    phase = width - 1
    for u in range((outputs + width - 1) // width * width - 1, -1, -1):
        i = u + first
        if 0 <= i < count:
            behind = behind + load(source, start + i * stride)
        if u < outputs:
            ahead = load(prefix, u + width - 1)
            if phase > 0:
                ahead = ahead + behind
            store(target, begin + u * step, ahead)
        phase -= 1
        if phase < 0:
            behind, phase = zero, width - 1


@njit(**KERNEL)
def box(source, rows, columns, first, width, target, new_rows, new_columns, across, prefix):
    """Sums over width×width windows of an image of rows×columns, cut to it; `first` is where window 0 begins."""
    for y in range(rows):
        windows(source, y * columns, 1, columns, first, width, across, y * new_columns, 1, new_columns, prefix)
    for x in range(new_columns):
        windows(across, x, new_columns, rows, first, width, target, x, new_columns, new_rows, prefix)


@njit(**KERNEL)
def patches(source, rows, columns, first, width, stride, target, new_rows, new_columns, across, prefix):
    """Sums over width×width windows, every stride-th along each axis and the last; by `box` where the stride is 1."""
    if stride == 1:
        box(source, rows, columns, first, width, target, new_rows, new_columns, across, prefix)
        return
    for y in range(rows):
        for i in range(new_columns):
            start = y * columns + min(i * stride, columns - width)
            a = load(source, start)
            for e in range(start + 1, start + width):
                a = a + load(source, e)
            store(across, y * new_columns + i, a)
    for i in range(new_rows):
        start = min(i * stride, rows - width)
        for x in range(new_columns):
            a = load(across, start * new_columns + x)
            for e in range(start + 1, start + width):
                a = a + load(across, e * new_columns + x)
            store(target, i * new_columns + x, a)


@njit(**KERNEL)
def covers(at, length, width, stride, count):
    """The patches [from, to) that cover a place along an axis."""
    last = count - 1                                    # it begins at length − width, all others at multiples of stride
    low = min(max(0, (at - width) // stride + 1), last)
    high = min(at // stride, last - 1) + 1
    return low, (count if at >= length - width else high)


@njit(**KERNEL)
def spread(p, rows, columns, width, stride, weight, target, new_rows, new_columns, across):
    """target += weight · Σ p over the patches that cover each pixel: the transpose of `patches` inside the image."""
    for y in range(new_rows):
        low, high = covers(y, new_rows, width, stride, rows)
        for x in range(columns):
            a = load(p, low * columns + x)
            for i in range(low + 1, high):
                a = a + load(p, i * columns + x)
            store(across, y * columns + x, a)
    for x in range(new_columns):
        low, high = covers(x, new_columns, width, stride, columns)
        for y in range(new_rows):
            a = load(across, y * columns + low)
            for i in range(low + 1, high):
                a = a + load(across, y * columns + i)
            q = y * new_columns + x
            store(target, q, load(target, q) + splat(weight[q]) * a)
