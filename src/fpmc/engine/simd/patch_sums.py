"""Running sums of patches in float32, one number each for mass and moments, emptied into float64 (see `shifts`)."""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.shifts import refer, tighten
from fpmc.engine.simd.vector import KERNEL


@njit(**KERNEL)
def closer(least, at, scale, margin, near, best, limit, mass, moment, sums):
    """`shifts.refer`, of these sums, too; what they were multiplied with."""
    channels = len(moment) // len(mass)
    fade = np.float32(refer(least, at, scale, margin, near, best, limit, mass, moment))
    for c in range(at * (1 + channels), (at + 1) * (1 + channels)):
        sums[c] *= fade
    return fade


@njit(**KERNEL)
def empty(query, patches, b, sums):
    """Sums to float64, and what is then out of reach."""
    channels = patches.moment.shape[1] // patches.mass.shape[1]
    for at in range(patches.mass.shape[1]):
        patches.mass[b, at] += sums[at * (1 + channels)]
        for c in range(channels):
            patches.moment[b, at * channels + c] += sums[at * (1 + channels) + 1 + c]
    sums[:] = 0
    tighten(query, patches, b)
