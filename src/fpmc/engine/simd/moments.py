"""Means of some estimators' answers, and how they move with q: images in tiles, sums over the entries of q.

For a pair (ℓ, j) of an estimator and an output dimension the mean is μ̂_ℓ(j). For features B_k(·; ℓ) of q, with
G_k(x) = Σ_i B_k(i; ℓ) (z − x)_i²,

    ∂μ̂_ℓ(j) / ∂θ_k = −1/(2σ²) Cov_ℓ(x_j, G_k)        where q_ℓ = Σ_k θ_k B_k.

Images whose weight is below `cut` times that of the likeliest have none, which changes a posterior of N images by at
most N·cut. Covariances are those of `DRAWS` images drawn from the posterior: they say where to step, and what a step
brings is measured with means, for which every image counts. Tiles and rows of entries are those of `tiles`.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np
import torch
from numba import njit

from fpmc.core.sources import Source, scale
from fpmc.engine.simd import lanes
from fpmc.engine.simd.fours import four_rows
from fpmc.engine.simd.gradients import Entries
from fpmc.engine.simd.lanes import BOTTOM, NOTHING, lay_out, unpack
from fpmc.engine.simd.sparse import FOUR, Fours
from fpmc.engine.simd.tiles import VECTORS, WIDTH, posterior, squares, weigh
from fpmc.engine.simd.vector import KERNEL, LANES, add_totals, largest, load, splat, store, total

LEFT_OUT = 1e-3                                         # of a posterior, at most: images that count for nothing
CHUNK = 4096                                            # images that are laid out at a time
DRAWS = 256                                             # of a posterior, for its covariances
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
def draw(kept, ell, share, draws, images, weights):
    """Images in proportion to their posterior of estimator ℓ, `draws` of them at even steps, and the weights they get.

    The number of different ones; an image whose posterior is p has a weight within 1 / draws of it.
    """
    count, reached, level = 0, 0, 0.5
    for t in range(len(kept)):
        (a, b, c, d), most = posterior(kept[t], ell, share * draws)
        if most == 0:
            continue
        after = level + total((a + b) + (c + d))
        if int(after + 1e-3) > reached:                 # someone here is drawn
            for i in range(WIDTH):
                level += kept[t, ell * WIDTH + i] * share * draws
                if int(level) > reached:
                    images[count], weights[count] = t * WIDTH + i, (int(level) - reached) / draws
                    count, reached = count + 1, int(level)
        else:
            level = after
    return count


@njit(**KERNEL)
def gather(s, ends, places, ell, sums):
    """sums (K·LANES): G_k of some images, from the entries of each feature of estimator ℓ."""
    features = len(sums) // LANES
    for k in range(features):
        a = splat(np.float32(0))
        for e in range(ends[ell * features + k], ends[ell * features + k + 1]):
            a = a + load(s, places[e])
        store(sums, k, a)


@njit(**KERNEL)
def add_products(w, sums, out):
    """out (K,) += Σ w G_k over some images; K is a multiple of 4."""
    for k in range(0, len(out), 4):
        add_totals(
            out, k, w * load(sums, k), w * load(sums, k + 1), w * load(sums, k + 2), w * load(sums, k + 3)
        )


@njit(**KERNEL)
def slopes(
    kept, share, z, pixels, draws, span, pair_ends, pair_places, feature_ends, feature_places, means, covariances
):
    """covariances (pairs, K) of x_j and G_k, from images drawn of each estimator's posterior.

    E[(x − m)(G − Ḡ)] = E[(x − m) G] − E[x − m] Ḡ for any m; with m = `means` little is taken from little.
    """
    room, features = min(draws, len(pixels)) + LANES, covariances.shape[1]
    images, weights = np.zeros(room, np.int64), np.empty(room, np.float32)
    scaled, block = z * np.float32(127.5), np.empty((1, len(z) * LANES), np.uint8)
    x, s = np.empty(len(z) * LANES, np.float32), np.empty(span * LANES, np.float32)
    sums, middle = np.empty(features * LANES, np.float32), np.empty(features, np.float32)
    off = np.zeros(len(pair_places), np.float32)
    for ell in range(len(pair_ends) - 1):
        count = draw(kept, ell, share[ell], draws, images, weights)
        weights[count : count + LANES], middle[:] = 0, 0
        for first in range(0, count, LANES):
            lay_out(pixels[images[first : first + LANES]], block)
            unpack(block[0], x)
            lanes.squares(scaled, x, s)
            gather(s, feature_ends, feature_places, ell, sums)
            w = load(weights[first : first + LANES], 0)
            add_products(w, sums, middle)
            for e in range(pair_ends[ell], pair_ends[ell + 1]):
                pulled = w * (load(x, pair_places[e]) - splat(means[e] * np.float32(127.5)))
                off[e] += total(pulled)
                add_products(pulled, sums, covariances[e])
        for e in range(pair_ends[ell], pair_ends[ell + 1]):
            for k in range(features):
                covariances[e, k] = (covariances[e, k] - off[e] * middle[k]) * np.float32(1 / 127.5**3)


@njit(**KERNEL)
def keep(u, ell, n, kept, top):
    """Logits of one vector of a tile."""
    top[ell] = max(top[ell], largest(u))
    store(kept, VECTORS * ell + n, u)


@njit(**KERNEL)
def logits(s, log_weights, tile, scale, ends, places, values, kept, top):
    """kept (rows·WIDTH) = log ν − Σ q (z − x)² / 2σ², and its maximum so far in `top`; `FOUR` rows at a time.

    Neighbours see much the same places: what is read at one is used for all four. `places` count vectors of s, not
    dimensions.
    """
    by = splat(scale)
    for g in range(len(ends) - 1):
        for n in range(VECTORS):
            a, b, c, d = four_rows(s, places, values, ends[g], ends[g + 1], n)
            u = load(log_weights, VECTORS * tile + n)
            keep(u - by * a, FOUR * g, n, kept, top)
            keep(u - by * b, FOUR * g + 1, n, kept, top)
            keep(u - by * c, FOUR * g + 2, n, kept, top)
            keep(u - by * d, FOUR * g + 3, n, kept, top)


@njit(**KERNEL)
def weigh_all(tiles, log_weights, z, scale, cut, ends, places, values, span, kept, share):
    """kept · share: the posteriors of one noisy image."""
    s, top, mass = np.empty(span * WIDTH, np.float32), np.full(len(share), np.float32(BOTTOM)), np.zeros(len(share))
    for t in range(len(tiles)):
        squares(z, tiles[t], s)
        logits(s, log_weights, t, scale, ends, places, values, kept[t], top)
    for t in range(len(tiles)):
        weigh(kept[t], top, cut, mass)
    share[:] = 1 / mass


@njit(**KERNEL)
def average(tiles, kept, share, pair_ends, pair_places, means):
    """means (pairs,) += Σ p x."""
    for t in range(len(tiles)):
        for ell in range(len(pair_ends) - 1):
            p, most = posterior(kept[t], ell, share[ell])
            if most > 0:
                add_means(p, tiles[t], pair_places, pair_ends[ell], pair_ends[ell + 1], means)


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
        self.pixels = np.zeros((len(self.ids), dimension), np.uint8)            # image by image
        tiles, place = torch.from_numpy(self.tiles).view(count, dimension, WIDTH), 0
        for pixels, log_weights, _ in source.chunks(CHUNK):                     # never twice in memory
            on = slice(None) if log_weights is None else log_weights > -torch.inf
            pixels = pixels[on].flatten(1)
            here = torch.arange(place, place + len(pixels))
            tiles[here // WIDTH, :, here % WIDTH] = scale(pixels, torch.float32)
            self.pixels[place : place + len(pixels)] = pixels.numpy()
            self.log_weights[place : place + len(pixels)] = 0.0 if log_weights is None else log_weights[on].numpy()
            place += len(pixels)
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
        for first in range(0, len(q.ends) - 1, ROWS):
            last = min(first + ROWS, len(q.ends) - 1)
            here = slice(q.ends[first], q.ends[last])
            row = np.repeat(np.arange(last - first), np.diff(q.ends[first : last + 1]))
            fours = Fours.of(row, q.places[here], q.values[here], last - first, span)
            share = np.empty(FOUR * (len(fours.ends) - 1), np.float32)
            kept = self._kept(len(share))
            rows_of_q = fours.ends, VECTORS * fours.places, fours.values.ravel()
            weigh_all(self.tiles, log_weights, z, np.float32(0.5 / sigma**2), self.cut, *rows_of_q, span, kept, share)
            wanted = slice(pairs.ends[first], pairs.ends[last])
            ours = (pairs.ends[first : last + 1] - wanted.start, pairs.places[wanted])
            average(self.tiles, kept, share, *ours, means[wanted])
            if features is not None:
                asked = (*ours, features.ends[first * count :], features.places)
                slopes(kept, share, z, self.pixels, DRAWS, span, *asked, means[wanted], found[wanted])
        return means, found

    def _kept(self, rows: int) -> np.ndarray:
        """Room for the posteriors of some rows, the same whenever a thread asks."""
        size = len(self.tiles) * rows * WIDTH
        if getattr(self._memory, "room", NONE).size < size:
            self._memory.room = np.empty(size, np.float32)
        return self._memory.room[:size].reshape(len(self.tiles), rows * WIDTH)
