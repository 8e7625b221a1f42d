"""Kernels of the sparse gradients: images in tiles of `WIDTH`, q and r by their entries.

A tile holds its images dimension by dimension. For one noisy image all posteriors are kept, tile by tile; beyond them
its gradients need the posterior means at the entries of r, and one number a for each estimator and image. What is added
up over many tiles is added up in float64. A noisy image goes through the last five kernels, one after the other; where
tiles are a stretch of the source only, what a kernel summed is merged before the next. Arrays of `WIDTH` columns are
passed flat. Entries of row ℓ are ends[ℓ] … ends[ℓ + 1], each with its place and value; names and formulas are those of
`gradients`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from fpmc.engine.simd.lanes import BOTTOM
from fpmc.engine.simd.vector import KERNEL, LANES, exp, larger, largest, load, splat, store, total
from fpmc.engine.state import NEGLIGIBLE

VECTORS = 4                                             # accumulators of a row, so that additions need not wait
WIDTH = VECTORS * LANES
LEAST = np.float32(NEGLIGIBLE)


@njit(**KERNEL)
def squares(z, x, s):
    """s = (z − x)², summed over the channels if s has fewer rows than x."""
    rows = len(s) // WIDTH
    for p in range(rows):
        for k in range(VECTORS):
            a = splat(np.float32(0))
            for i in range(p, len(z), rows):
                d = splat(z[i]) - load(x, VECTORS * i + k)
                a = a + d * d
            store(s, VECTORS * p + k, a)


@njit(**KERNEL)
def products(v, denoised, x, s):
    """s = v (x − D), summed over the channels if s has fewer rows than x."""
    rows = len(s) // WIDTH
    for p in range(rows):
        for k in range(VECTORS):
            a = splat(np.float32(0))
            for i in range(p, len(v), rows):
                a = a + splat(v[i]) * (load(x, VECTORS * i + k) - splat(denoised[i]))
            store(s, VECTORS * p + k, a)


@njit(**KERNEL)
def row_sum(s, places, values, first, last):
    """Σ values·s[places] over the entries first … last: `VECTORS` vectors."""
    a = b = c = d = splat(np.float32(0))
    for e in range(first, last):
        w, row = splat(values[e]), VECTORS * places[e]
        a = a + w * load(s, row)
        b = b + w * load(s, row + 1)
        c = c + w * load(s, row + 2)
        d = d + w * load(s, row + 3)
    return a, b, c, d


@njit(**KERNEL)
def dots(p, s, places, first, last, shift, result):
    """result += Σ p·s[places + shift] over the images of a tile, for the entries first … last."""
    a, b, c, d = p
    for e in range(first, last):
        row = VECTORS * (places[e] + shift)
        one = a * load(s, row) + b * load(s, row + 1)
        other = c * load(s, row + 2) + d * load(s, row + 3)
        result[e] += total(one + other)


@njit(**KERNEL)
def logits(s, log_weights, tile, scale, ends, places, values, kept, top):
    """kept (L·WIDTH) = log ν − Σ q (z − x)² / 2σ², and its maximum so far in `top`."""
    v0, v1 = load(log_weights, VECTORS * tile), load(log_weights, VECTORS * tile + 1)
    v2, v3 = load(log_weights, VECTORS * tile + 2), load(log_weights, VECTORS * tile + 3)
    for ell in range(len(top)):
        a, b, c, d = row_sum(s, places, values, ends[ell], ends[ell + 1])
        a, b, c, d = v0 - splat(scale) * a, v1 - splat(scale) * b, v2 - splat(scale) * c, v3 - splat(scale) * d
        top[ell] = max(top[ell], largest(larger(larger(a, b), larger(c, d))))
        store(kept, VECTORS * ell, a)
        store(kept, VECTORS * ell + 1, b)
        store(kept, VECTORS * ell + 2, c)
        store(kept, VECTORS * ell + 3, d)


@njit(**KERNEL)
def weigh(kept, top, cut, mass):
    """kept = exp(kept − top) less `cut` where that is positive, and its sum so far in `mass`."""
    for ell in range(len(top)):
        together = splat(np.float32(0))
        for row in range(VECTORS * ell, VECTORS * (ell + 1)):
            share = larger(exp(load(kept, row) - splat(top[ell])) - splat(cut), splat(np.float32(0)))
            together = together + share
            store(kept, row, share)
        mass[ell] += total(together)


@njit(**KERNEL)
def posterior(kept, ell, share):
    """The posteriors of one estimator in a tile, and the largest of them."""
    w, row = splat(share), VECTORS * ell
    a, b, c, d = w * load(kept, row), w * load(kept, row + 1), w * load(kept, row + 2), w * load(kept, row + 3)
    return (a, b, c, d), largest(larger(larger(a, b), larger(c, d)))


@njit(**KERNEL)
def add_means(kept, share, x, ends, places, span, means):
    """means (channels, entries) += Σ p x at the entries of r, over the images of a tile."""
    for ell in range(len(share)):
        p, most = posterior(kept, ell, share[ell])
        if most > 0:
            for c in range(len(means)):
                dots(p, x, places, ends[ell], ends[ell + 1], c * span, means[c])


@njit(**KERNEL)
def answer(kept, share, a, ends, places, values, answers, centre):
    """answers (L·WIDTH) = a of every estimator and image of a tile; centre += Σ p a."""
    for ell in range(len(share)):
        p, most = posterior(kept, ell, share[ell])
        if most > 0:
            a0, a1, a2, a3 = row_sum(a, places, values, ends[ell], ends[ell + 1])
            centre[ell] += total((p[0] * a0 + p[1] * a1) + (p[2] * a2 + p[3] * a3))
            store(answers, VECTORS * ell, a0)
            store(answers, VECTORS * ell + 1, a1)
            store(answers, VECTORS * ell + 2, a2)
            store(answers, VECTORS * ell + 3, a3)


@njit(**KERNEL)
def add_pull(kept, share, answers, centre, s, ends, places, grad_q):
    """grad_q += Σ p (a − ā)(z − x)² at the entries of q, over the images of a tile."""
    for ell in range(len(share)):
        p, most = posterior(kept, ell, share[ell])
        if most > 0:
            middle, row = splat(np.float32(centre[ell])), VECTORS * ell
            a0, a1 = load(answers, row) - middle, load(answers, row + 1) - middle
            a2, a3 = load(answers, row + 2) - middle, load(answers, row + 3) - middle
            dots((p[0] * a0, p[1] * a1, p[2] * a2, p[3] * a3), s, places, ends[ell], ends[ell + 1], 0, grad_q)


@njit(**KERNEL)
def weigh_all(tiles, log_weights, z, scale, ends, places, values, s, kept, top, mass):
    """kept = exp(logit − top) of one noisy image, tile by tile; the largest logits and their sums in `top`, `mass`."""
    top[:], mass[:] = BOTTOM, 0
    for t in range(len(tiles)):
        squares(z, tiles[t], s)
        logits(s, log_weights, t, scale, ends, places, values, kept[t], top)
    for t in range(len(tiles)):
        weigh(kept[t], top, LEAST, mass)


@njit(**KERNEL)
def average(tiles, kept, share, ends, places, values, span, means, numerator):
    """means = Σ p x at the entries of r, over our images; numerator = Σ_ℓ r_ℓ Σ p x."""
    means[:], numerator[:] = 0, 0
    for t in range(len(tiles)):
        add_means(kept[t], share, tiles[t], ends, places, span, means)
    for e in range(len(places)):
        for c in range(len(means)):
            numerator[places[e] + c * span] += values[e] * means[c, e]


@njit(**KERNEL)
def add_slopes(means, present, v, denoised, ends, places, span, grad_r):
    """grad_r += v (Σ p x − Σ p · D) at the entries of r; `present` has Σ p over our images."""
    for ell in range(len(present)):
        for e in range(ends[ell], ends[ell + 1]):
            for c in range(len(means)):
                i = places[e] + c * span
                grad_r[e] += v[i] * (means[c, e] - present[ell] * denoised[i])


@njit(**KERNEL)
def answer_all(tiles, kept, share, v, denoised, ends, places, values, a, answers, centre):
    """answers = a of every estimator and image; centre = Σ p a over our images."""
    centre[:] = 0
    for t in range(len(tiles)):
        products(v, denoised, tiles[t], a)
        answer(kept[t], share, a, ends, places, values, answers[t], centre)


@njit(**KERNEL)
def pull_all(tiles, kept, share, answers, centre, z, ends, places, s, grad_q):
    """grad_q += Σ p (a − ā)(z − x)² at the entries of q."""
    for t in range(len(tiles)):
        squares(z, tiles[t], s)
        add_pull(kept[t], share, answers[t], centre, s, ends, places, grad_q)
