"""Move, turn and scale images: a windowed sinc at any position of an image continued by reflection."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numba import njit
from torch import Tensor

REACH = 4                                               # pixels the sinc reaches to each side
BETA = 5.0                                              # of its Kaiser window: 0.4 % off up to 0.3 cycles a pixel
PHASES = 1024                                           # positions told apart between two pixels
SHARE = 256                                             # images that are worth a thread
COMPILED = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}


def warp(pixels: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """Images that show at p, measured from the centre, what was at M p + t (App. B): uint8 (n, C, H, W).

    matrix M (n, 2, 2) and offset t (n, 2) are float64 in pixels, (x, y) with y down. An image goes on beyond its border
    as its reflection, the border pixel not repeated. Where it shrinks the sinc widens alike, so that nothing aliases.
    """
    count, _, height, width = pixels.shape
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=torch.float64)
    start = centre + offset - matrix @ centre           # where the first pixel looks
    spread = matrix.norm(dim=2).amax(1)                 # pixels from one look to the next
    spread = spread.where(spread > 1 + 1e-9, 1.0)       # a rotation's rounding is no shrinking
    result = torch.empty(pixels.shape, dtype=torch.uint8)
    arrays = [a.contiguous().numpy() for a in (pixels, matrix, start, spread, result)]
    threads = max(1, min(torch.get_num_threads(), count // SHARE))
    shares = [np.array_split(array, threads) for array in arrays]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_warp, *shares, [_kernel()] * threads))
    return result


@cache
def _kernel() -> np.ndarray:
    """The windowed sinc at 0, 1/PHASES, …, REACH and once more, float64; 0 at whole numbers, but 1 at 0."""
    x = np.arange(REACH * PHASES + 2) / PHASES
    kernel = np.sinc(x) * np.i0(BETA * np.sqrt(np.clip(1 - (x / REACH) ** 2, 0, None))) / np.i0(BETA)
    kernel[PHASES::PHASES] = 0.0
    return kernel


@njit(**COMPILED)
def _warp(pixels, matrix, start, spread, result, kernel):
    count, channels, height, width = pixels.shape
    plain = _weights(1.0, kernel)
    for n in range(count):
        weights = plain if spread[n] == 1.0 else _weights(spread[n], kernel)
        taps = weights.shape[1]
        reach = taps // 2
        # A folded position lies in the image, so it sees no more of the reflection than a margin of `reach`.
        stride = width + taps
        columns = np.array([int(_fold(x, width)) for x in range(-reach, width + reach)])
        padded = np.empty((channels, (height + taps) * stride), np.float32)
        for c in range(channels):
            for y in range(height + taps):
                row, line = pixels[n, c, int(_fold(y - reach, height))], padded[c, y * stride : (y + 1) * stride]
                for x in range(stride):
                    line[x] = row[columns[x]]
        for y in range(height):
            for x in range(width):
                u = _fold(start[n, 0] + matrix[n, 0, 0] * x + matrix[n, 0, 1] * y, width)
                v = _fold(start[n, 1] + matrix[n, 1, 0] * x + matrix[n, 1, 1] * y, height)
                across, down = weights[int((u - int(u)) * PHASES + 0.5)], weights[int((v - int(v)) * PHASES + 0.5)]
                first = (int(v) + 1) * stride + int(u) + 1
                for c in range(channels):
                    value = np.float32(0.5)
                    for j in range(taps):
                        line = padded[c, first + j * stride : first + j * stride + taps]
                        total = np.float32(0)
                        for i in range(taps):
                            total += across[i] * line[i]
                        value += down[j] * total
                    result[n, c, y, x] = np.uint8(min(max(value, np.float32(0)), np.float32(255)))


@njit(**COMPILED)
def _weights(spread, kernel):
    """For each phase between two pixels the weights of the pixels around, summing to 1: (PHASES + 1, taps)."""
    reach = math.ceil(REACH * spread)
    weights = np.empty((PHASES + 1, 2 * reach), np.float32)
    for phase in range(PHASES + 1):
        total = 0.0
        for k in range(2 * reach):
            x = min(abs(k - reach + 1 - phase / PHASES) / spread, REACH) * PHASES
            cell = int(x)
            weights[phase, k] = kernel[cell] + (x - cell) * (kernel[cell + 1] - kernel[cell])
            total += weights[phase, k]
        weights[phase] /= np.float32(total)
    return weights


@njit(**COMPILED)
def _fold(position, length):
    """Where in 0 … length − 1 a position beyond the border is reflected to."""
    if length == 1:
        return 0.0
    period = 2.0 * (length - 1)
    position = abs(position)
    position -= period * math.floor(position / period)
    return min(position, period - position)
