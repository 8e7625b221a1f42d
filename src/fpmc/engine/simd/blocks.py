"""Translated sources with images in the lanes (ELS; App. A.2.2): box sums at any patch size, for large patches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from fpmc.engine.simd.boxes import windows
from fpmc.engine.simd.lanes import unpack
from fpmc.engine.simd.vector import KERNEL, LANES, exp, exp_one, largest, load, splat, store, total


class Blocks(NamedTuple):
    """Patches that move."""

    channels: int
    height: int
    width: int
    size: int


@njit(**KERNEL)
def blocks_posterior(stretch, first, last, asked, sums, q):
    """ELS: posterior sums over all images and all displacements a pixel may take (App. A.2.2); moment (B, d)."""
    blocks, log_weights, z, scale, cut = stretch.blocks, stretch.log_weights, asked.z, asked.scale, asked.cut
    top, mass, moment = sums.top, sums.mass, sums.moment
    channels, height, width, size = q.channels, q.height, q.width, q.size
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
                                    moment[b, pixel * channels + c] *= fade
                            weight = exp(logit - splat(t))
                            mass[b, pixel] += total(weight)
                            for c in range(channels):
                                there = pixel + dy * width + dx + c * pixels
                                moment[b, pixel * channels + c] += total(weight * load(x, there))
