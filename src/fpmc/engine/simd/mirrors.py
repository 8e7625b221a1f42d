"""Rows that mirrors leave as they are: q_ℓ(i) = q_gℓ(gi) for the reflections g of the image, one row for each pixel.

Sums over mirrored pixels that are even or odd along either axis do not mix: what 4·n pixels are multiplied with is four
matrices of n×n instead of one of 4n×4n, a quarter of the work whatever the values. With s(±) = Σ_g ±s(gi) over the
different pixels gi and m(±)_ℓ(i) = ¼ Σ_g ±q_ℓ(gi), Σ_i q_gℓ(i) s(i) is the sum of the four m(±) s(±), each with its
sign at g. If the diagonal of a square image is a mirror as well, those that are even or odd along both axes fall in two
once more, which leaves three sixteenths.

Differences of mirrored pixels lose digits where their sum is large: `kernels.mirrored` says from where on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from fpmc.engine.simd.fours import four_sums
from fpmc.engine.simd.sparse import FOUR, Fours, Sparse, in_fours
from fpmc.engine.simd.vector import KERNEL, load, splat, store


class Mirrors(NamedTuple):
    """Rows by their mirrored sums."""

    height: int
    width: int
    diagonal: bool                                      # is a mirror, too
    rows: Sparse                                        # over the sums of a quarter: even, odd along x, y, both
    at: np.ndarray                                      # int64 (4·n,): their rows


class Block(NamedTuple):
    """A matrix that others do not mix with."""

    slots: Tensor                                       # int64: its sums among the 4·n, and its rows
    values: Tensor                                      # float64 (slots, slots)


def mirrored(matrix: Tensor, height: int, width: int, diagonal: bool) -> Tensor:
    """The mean of a matrix (pixels, pixels) over reflections of both, bit by bit the same in all."""
    whole = matrix.double().view(height, width, height, width)
    for axis in (0, 1):
        whole = whole.flip(axis, axis + 2).add_(whole).div_(2)
    if diagonal:
        whole = (whole + whole.permute(1, 0, 3, 2)).div_(2)
    return whole.reshape(matrix.shape)


def blocks(matrix: Tensor, height: int, width: int, diagonal: bool) -> list[Block]:
    """The matrices m(±) of a mirrored one."""
    up, left = -(-height // 2), -(-width // 2)
    whole, n, found = matrix.view(height, width, height, width)[:up, :left], up * left, []
    for number, (down, across) in enumerate(((1, 1), (1, -1), (-1, 1), (-1, -1))):
        part = whole + down * whole.flip(2)
        part = (part + across * part.flip(3))[:, :, :up, :left] / 4
        slots = number * n + torch.arange(n).view(up, left)
        if diagonal and down == across:                 # sums are where y ≤ x, differences where y > x
            swapped, above = part.transpose(2, 3), torch.ones(up, left).triu().bool()
            found.append(Block(slots[above], ((part + swapped) / 2)[above][:, above]))
            above = above & ~above.T
            found.append(Block(slots.T[above], ((part - swapped) / 2)[above][:, above]))
        else:
            found.append(Block(slots.flatten(), part.reshape(n, n)))
    return found


def build(matrix: Tensor, height: int, width: int, diagonal: bool) -> Mirrors:
    """Of a matrix (pixels, pixels) that is `mirrored`."""
    every = blocks(matrix, height, width, diagonal)
    at = np.zeros(sum(len(block.slots) for block in every), np.int64)
    row, place, value, count = [], [], [], 0
    for slots, values in every:
        values = values.float()
        to, of = values.nonzero().numpy().T
        row.append(count + to)
        place.append(slots.numpy()[of])
        value.append(values[to, of].numpy())
        at[slots.numpy()] = count + np.arange(len(slots))
        count += -(-len(slots) // FOUR) * FOUR
    joined = (np.concatenate(each) for each in (row, place, value))
    return Mirrors(height, width, diagonal, Fours.of(*joined, count, len(at)).rows(count), at)


def places(matrix: Tensor, height: int, width: int, diagonal: bool) -> int:
    """How many places of fours `build` makes of a mirrored matrix."""
    return sum(in_fours(block.values.float()) for block in blocks(matrix, height, width, diagonal))


@njit(**KERNEL)
def fold(s, height, width, diagonal, folded):
    """s(±) of all pixels of a quarter; what an odd sum has in a middle line meets zeros."""
    rows, columns = (height + 1) // 2, (width + 1) // 2
    n = rows * columns
    for y in range(rows):
        up, down = y * width, (height - 1 - y) * width
        for x in range(columns):
            i, back = y * columns + x, width - 1 - x
            a, b = load(s, up + x), load(s, up + back)
            even, odd = (a, a) if x == back else (a + b, a - b)
            if up == down:
                store(folded, i, even)
                store(folded, n + i, odd)
                store(folded, 2 * n + i, even)
                store(folded, 3 * n + i, odd)
            else:
                a, b = load(s, down + x), load(s, down + back)
                below, other = (a, a) if x == back else (a + b, a - b)
                store(folded, i, even + below)
                store(folded, n + i, odd + other)
                store(folded, 2 * n + i, even - below)
                store(folded, 3 * n + i, odd - other)
    if diagonal:
        swap(folded, 0, rows)
        swap(folded, 3 * n, rows)


@njit(**KERNEL)
def swap(folded, first, size):
    """Sums of pixels that the diagonal mirrors above it, differences below."""
    for y in range(size):
        for x in range(y + 1, size):
            above, below = first + y * size + x, first + x * size + y
            a, b = load(folded, above), load(folded, below)
            store(folded, above, a + b)
            store(folded, below, a - b)


@njit(**KERNEL)
def of_both(sums, at, first, y, x, size):
    """What a sum and a difference across the diagonal say of the row of pixel (y, x)."""
    a, b = load(sums, at[first + min(y, x) * size + max(y, x)]), load(sums, at[first + max(y, x) * size + min(y, x)])
    if y == x:
        return a
    return a + b if y < x else a - b


@njit(**KERNEL)
def unfold(sums, mirrors, target):
    """What the sums of a quarter say of all its mirrored rows."""
    height, width, at = mirrors.height, mirrors.width, mirrors.at
    rows, columns = (height + 1) // 2, (width + 1) // 2
    n = rows * columns
    for y in range(rows):
        up, down = y * width, (height - 1 - y) * width
        for x in range(columns):
            i, back = y * columns + x, width - 1 - x
            if mirrors.diagonal:
                a, d = of_both(sums, at, 0, y, x, rows), of_both(sums, at, 3 * n, y, x, rows)
            else:
                a, d = load(sums, at[i]), load(sums, at[3 * n + i])
            b, c = load(sums, at[n + i]), load(sums, at[2 * n + i])
            even, odd, below, other = a + c, b + d, a - c, b - d
            store(target, up + x, even + odd)
            if x != back:
                store(target, up + back, even - odd)
            if up != down:
                store(target, down + x, below + other)
                if x != back:
                    store(target, down + back, below - other)


@njit(**KERNEL)
def mirrored_sums(s, mirrors, target, folded, parts):
    """target[row] = Σ q s; s(±) and their sums need room."""
    fold(s, mirrors.height, mirrors.width, mirrors.diagonal, folded)
    four_sums(folded, mirrors.rows, parts, splat(np.float32(0)), np.float32(0), folded[:0])
    unfold(parts, mirrors, target)
