"""Means of some estimators' answers, and how they move with q: images in tiles, sums over the entries of q.

For a pair (ℓ, j) of an estimator and an output dimension the mean is μ̂_ℓ(j). For features B_k(·; ℓ) of q, with
G_k(x) = Σ_i B_k(i; ℓ) (z − x)_i²,

    ∂μ̂_ℓ(j) / ∂θ_k = −1/(2σ²) Cov_ℓ(x_j, G_k)        where q_ℓ = Σ_k θ_k B_k.

Images whose weight is below `cut` times that of the likeliest have none, which changes a posterior of N images by at
most N·cut. Tiles and rows of entries are those of `tiles`.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np
import torch
from numba import njit

from fpmc.core.sources import Source, scale
from fpmc.engine.simd.gradients import Entries
from fpmc.engine.simd.lanes import BOTTOM, NOTHING
from fpmc.engine.simd.tiles import VECTORS, WIDTH, logits, posterior, squares, weigh
from fpmc.engine.simd.vector import KERNEL, add_totals, load, splat, store, total

LEFT_OUT = 1e-3                                         # of a posterior, at most: images that count for nothing
CHUNK = 4096                                            # images that are laid out at a time
ROWS = 1024                                             # estimators at a time: their posteriors take 4 N bytes each


@njit(**KERNEL)
def four(p, x, k):
    """Σ p·x_k over the vectors of a tile, lane by lane."""
    a, b, c, d = p
    row = VECTORS * k
    return (a * load(x, row) + b * load(x, row + 1)) + (c * load(x, row + 2) + d * load(x, row + 3))


@njit(**KERNEL)
def add_means(p, x, places, first, last, means):
    """means += Σ p x_j over the images of a tile, for the pairs first … last: four at a time, then the rest."""
    fours = first + (last - first) // 4 * 4
    for e in range(first, fours, 4):
        a, b = four(p, x, places[e]), four(p, x, places[e + 1])
        add_totals(means, e, a, b, four(p, x, places[e + 2]), four(p, x, places[e + 3]))
    for e in range(fours, last):
        means[e] += total(four(p, x, places[e]))


@njit(**KERNEL)
def gather(s, ends, places, ell, sums):
    """sums (K·WIDTH): G_k of the images of a tile, from the entries of each feature of estimator ℓ."""
    features = len(sums) // WIDTH
    for k in range(features):
        a = b = c = d = splat(np.float32(0))
        for e in range(ends[ell * features + k], ends[ell * features + k + 1]):
            row = VECTORS * places[e]
            a, b = a + load(s, row), b + load(s, row + 1)
            c, d = c + load(s, row + 2), d + load(s, row + 3)
        store(sums, VECTORS * k, a)
        store(sums, VECTORS * k + 1, b)
        store(sums, VECTORS * k + 2, c)
        store(sums, VECTORS * k + 3, d)


@njit(**KERNEL)
def add_covariances(p, x, j, mean, sums, out):
    """out (K,) += Σ p (x_j − mean) G_k over the images of a tile; K is a multiple of 4."""
    m, row = splat(mean), VECTORS * j
    pulled = (
        p[0] * (load(x, row) - m), p[1] * (load(x, row + 1) - m),
        p[2] * (load(x, row + 2) - m), p[3] * (load(x, row + 3) - m),
    )
    for k in range(0, len(out), 4):
        first, second = four(pulled, sums, k), four(pulled, sums, k + 1)
        add_totals(out, k, first, second, four(pulled, sums, k + 2), four(pulled, sums, k + 3))


@njit(**KERNEL)
def moments(
    tiles, log_weights, z, scale, cut, q_ends, q_places, q_values, q_span,
    pair_ends, pair_places, feature_ends, feature_places, kept, means, covariances,
):
    """One noisy image: means (pairs,) and covariances (pairs, K), added to what is there; K = 0: means alone."""
    estimators, features = len(q_ends) - 1, covariances.shape[1]
    s, sums = np.empty(q_span * WIDTH, np.float32), np.empty(features * WIDTH, np.float32)
    top, mass, share = np.full(estimators, np.float32(BOTTOM)), np.zeros(estimators), np.empty(estimators, np.float32)
    for t in range(len(tiles)):
        squares(z, tiles[t], s)
        logits(s, log_weights, t, scale, q_ends, q_places, q_values, kept[t], top)
    for t in range(len(tiles)):
        weigh(kept[t], top, cut, mass)
    share[:] = 1 / mass
    for t in range(len(tiles)):
        for ell in range(estimators):
            p, most = posterior(kept[t], ell, share[ell])
            if most > 0:
                add_means(p, tiles[t], pair_places, pair_ends[ell], pair_ends[ell + 1], means)
    if features > 0:
        for t in range(len(tiles)):
            squares(z, tiles[t], s)
            for ell in range(estimators):
                p, most = posterior(kept[t], ell, share[ell])
                if most > 0:
                    gather(s, feature_ends, feature_places, ell, sums)
                    for e in range(pair_ends[ell], pair_ends[ell + 1]):
                        add_covariances(p, tiles[t], pair_places[e], means[e], sums, covariances[e])


class Rows(NamedTuple):
    """Places, row by row."""

    ends: np.ndarray                                    # int64 (rows + 1,)
    places: np.ndarray                                  # int64 (places,)


NONE = np.zeros(0, np.int64)


class Tiled:
    """A source in tiles, of which many noisy images are asked."""

    def __init__(self, source: Source) -> None:
        weighty = slice(None) if source.log_weights is None else source.log_weights > -torch.inf
        self.ids = source.ids[weighty].numpy()
        dimension, count = math.prod(source.shape), -(-len(self.ids) // WIDTH)
        self.tiles = np.zeros((count, dimension * WIDTH), np.float32)
        self.log_weights = np.full(count * WIDTH, np.float32(NOTHING))
        tiles, place = torch.from_numpy(self.tiles).view(count, dimension, WIDTH), 0
        for pixels, log_weights, _ in source.chunks(CHUNK):                     # never twice in memory
            on = slice(None) if log_weights is None else log_weights > -torch.inf
            x = scale(pixels[on], torch.float32).flatten(1)
            here = torch.arange(place, place + len(x))
            tiles[here // WIDTH, :, here % WIDTH] = x
            self.log_weights[place : place + len(x)] = 0.0 if log_weights is None else log_weights[on].numpy()
            place += len(x)
        self._memory = threading.local()

    @property
    def cut(self) -> np.float32:
        """Of weights, relative to the largest: together they hold at most `LEFT_OUT`."""
        return np.float32(LEFT_OUT / len(self.ids))

    def without(self, identity: int | None) -> np.ndarray:
        """log ν without the images of one source id."""
        weights = self.log_weights
        if identity is not None and (here := self.ids == identity).any():
            weights = weights.copy()
            weights[: len(here)][here] = NOTHING
        return weights

    def moments(
        self, z: np.ndarray, sigma: float, log_weights: np.ndarray, q: Entries, span: int, pairs: Rows,
        features: Rows | None = None, count: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means (pairs,) and covariances with G_k (pairs, count), of one noisy image z (d,).

        q: entries of the estimators' rows, of `span` places each; pairs: for each row the output dimensions wanted;
        features: for each row and feature, count to a row, the entries that it has.
        """
        means = np.zeros(len(pairs.places), np.float32)
        found = np.zeros((len(pairs.places), count), np.float32)
        ends, places = (NONE, NONE) if features is None else features
        for first in range(0, len(q.ends) - 1, ROWS):
            here = slice(first, min(first + ROWS, len(q.ends) - 1) + 1)
            kept = self._kept(here.stop - 1 - first)
            wanted = slice(pairs.ends[first], pairs.ends[here.stop - 1])
            moments(
                self.tiles, log_weights, z, np.float32(0.5 / sigma**2), self.cut,
                q.ends[here], q.places, q.values, span,
                pairs.ends[here] - wanted.start, pairs.places[wanted], ends[first * count :], places,
                kept, means[wanted], found[wanted],
            )
        return means, found

    def _kept(self, rows: int) -> np.ndarray:
        """Room for the posteriors of some rows, the same whenever a thread asks."""
        size = len(self.tiles) * rows * WIDTH
        if getattr(self._memory, "room", NONE).size < size:
            self._memory.room = np.empty(size, np.float32)
        return self._memory.room[:size].reshape(len(self.tiles), rows * WIDTH)
