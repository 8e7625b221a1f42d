"""Squared differences of a row of z and a row of an image, pixel i against pixel j, summed down the rows of a patch.

For `shifts`: columns j of the image are in the vector lanes, `across` of them, a multiple of `LANES`.
"""

from __future__ import annotations

from numba import njit

from fpmc.engine.simd.columns import load_at, store_at
from fpmc.engine.simd.vector import INLINE, LANES, entry, splat


@njit(**INLINE)
def squares(z, y, other, q, x, edge, ring, own):
    """ring[own + i·across + j] = s(i, j) of row y of z and row `other` of the image, four i at a time."""
    across, pixels, width, channels, height = len(edge), q.height * q.width, q.width, q.channels, q.height
    reach = max(0, width - 2 * (q.size // 2) - 1)
    for i in range(0, width, 4):
        i1, i2, i3 = min(i + 1, width - 1), min(i + 2, width - 1), min(i + 3, width - 1)
        for j in range(max(0, i - reach) // LANES * LANES, min(across, i3 + reach + 1), LANES):
            a0 = load_at(edge, j)
            a1, a2, a3 = a0, a0, a0
            for c in range(channels):
                v = load_at(x, (c * height + other) * across + j)
                here = c * pixels + y * width
                d0 = splat(entry(z, here + i)) - v
                d1 = splat(entry(z, here + i1)) - v
                d2 = splat(entry(z, here + i2)) - v
                d3 = splat(entry(z, here + i3)) - v
                a0 = a0 + d0 * d0
                a1 = a1 + d1 * d1
                a2 = a2 + d2 * d2
                a3 = a3 + d3 * d3
            store_at(ring, own + i * across + j, a0)
            store_at(ring, own + i1 * across + j, a1)
            store_at(ring, own + i2 * across + j, a2)
            store_at(ring, own + i3 * across + j, a3)


@njit(**INLINE)
def squares_of_three(z, y, other, q, x, edge, ring, own, one, two, down):
    """`squares`, and at once their sums with those of the last two rows: patches of 3 are the most expensive."""
    across, pixels, width, channels, height = len(edge), q.height * q.width, q.width, q.channels, q.height
    pitch = len(down) // width
    for i in range(0, width, 4):
        i1, i2, i3 = min(i + 1, width - 1), min(i + 2, width - 1), min(i + 3, width - 1)
        for j in range(0, across, LANES):
            a0 = load_at(edge, j)
            a1, a2, a3 = a0, a0, a0
            for c in range(channels):
                v = load_at(x, (c * height + other) * across + j)
                here = c * pixels + y * width
                d0 = splat(entry(z, here + i)) - v
                d1 = splat(entry(z, here + i1)) - v
                d2 = splat(entry(z, here + i2)) - v
                d3 = splat(entry(z, here + i3)) - v
                a0 = a0 + d0 * d0
                a1 = a1 + d1 * d1
                a2 = a2 + d2 * d2
                a3 = a3 + d3 * d3
            e0, e1, e2, e3 = i * across + j, i1 * across + j, i2 * across + j, i3 * across + j
            store_at(down, i * pitch + j, a0 + load_at(ring, one + e0) + load_at(ring, two + e0))
            store_at(down, i1 * pitch + j, a1 + load_at(ring, one + e1) + load_at(ring, two + e1))
            store_at(down, i2 * pitch + j, a2 + load_at(ring, one + e2) + load_at(ring, two + e2))
            store_at(down, i3 * pitch + j, a3 + load_at(ring, one + e3) + load_at(ring, two + e3))
            store_at(ring, own + e0, a0)
            store_at(ring, own + e1, a1)
            store_at(ring, own + e2, a2)
            store_at(ring, own + e3, a3)


@njit(**INLINE)
def slide(u, q, ring, ahead, down):
    """down = the sum of the last `size` planes of s, of which number u is the last; three additions whatever the size.

    Sums go forward in `ahead` within stretches of `size` planes; at the end of each the ring is summed from the back.
    """
    width, size, plane = q.width, q.size, len(ahead)
    across, pitch, phase = -(-width // LANES) * LANES, len(down) // width, u % size
    own, rest, last = phase * plane, (phase + 1) * plane, phase == size - 1
    reach = max(0, width - 2 * (size // 2) - 1)
    for i in range(width):                              # no further than patches move, as in `squares`
        for j in range(max(0, i - reach) // LANES * LANES, min(across, i + reach + 1), LANES):
            e = i * across + j
            a = load_at(ring, own + e)
            if phase > 0:
                a = a + load_at(ahead, e)
            store_at(ahead, e, a)
            store_at(down, i * pitch + j, a if last else a + load_at(ring, rest + e))
    if last:
        for r in range(size - 2, -1, -1):
            for i in range(width):
                for j in range(max(0, i - reach) // LANES * LANES, min(across, i + reach + 1), LANES):
                    e = r * plane + i * across + j
                    store_at(ring, e, load_at(ring, e) + load_at(ring, e + plane))


@njit(**INLINE)
def step(z, y, other, u, inside, q, x, edge, ring, ahead, down):
    """One row further: s of row y of z and row `other` of the image, and the sums over the rows of a patch."""
    plane, phase = len(ahead), u % q.size
    own = phase * plane
    if inside and q.size == 3:
        squares_of_three(z, y, other, q, x, edge, ring, own, (u + 1) % 3 * plane, (u + 2) % 3 * plane, down)
        return
    if inside:
        squares(z, y, other, q, x, edge, ring, own)
    else:                                               # below the image
        ring[own : own + plane] = 0
    if q.size == 3:
        three(ring, down, q.width)
    else:
        slide(u, q, ring, ahead, down)


@njit(**INLINE)
def three(ring, down, width):
    """down = the sum of three planes."""
    pitch, plane = len(down) // width, len(ring) // 3
    across = -(-width // LANES) * LANES
    for i in range(width):
        for j in range(0, across, LANES):
            e = i * across + j
            store_at(down, i * pitch + j, load_at(ring, e) + load_at(ring, plane + e) + load_at(ring, 2 * plane + e))
