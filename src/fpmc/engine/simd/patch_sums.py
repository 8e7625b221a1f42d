"""Running sums of patches in float32, one number each for mass and moments, emptied into float64 (see `shifts`)."""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.shifts import LOG2E, tighten
from fpmc.engine.simd.vector import KERNEL


@njit(**KERNEL)
def closer(least, at, scale, margin, near, best, limit, mass, moment, sums):
    """A patch is nearer than all before: sums refer to it from now on."""
    channels = len(moment) // len(mass)
    fade = 2.0 ** max(-1000.0, scale * LOG2E * (float(least) - float(near[at])))
    near[at], best[at] = least, least
    limit[at] = min(limit[at], np.float32(least + margin))
    mass[at] *= fade
    for c in range(at * channels, (at + 1) * channels):
        moment[c] *= fade
    for c in range(at * (1 + channels), (at + 1) * (1 + channels)):
        sums[c] *= np.float32(fade)


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
