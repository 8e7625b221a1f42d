"""R in closed form, given Q: what each output pixel mixes from the answers of the estimators near it (Section 4.2).

The answers μ̂_ℓ(j) are summed over the classes of r (`places`), A_f(z, j), of c_f(j) estimators each, and

    D(z)_j = Σ_f t_f A_f(z, j) / Σ_f t_f c_f(j),    t ≥ 0,

is brought nearest to the network: first one t for all pixels, then one for each pixel, drawn towards the common one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fpmc.engine.simd.moments import Rows, Tiled
from fpmc.learn.fit import least_squares
from fpmc.learn.newton import Estimators, Pool, in_order
from fpmc.learn.places import Classes

ROUNDS = 4                                              # of the denominator, which moves little
RIDGES = (0.03, 0.15, 0.6, 2.5)                         # of pixels' own weights, times the error of a single answer


@dataclass(frozen=True)
class Answers:
    """A_f(z, j) and c_f(j) of a pool of noisy images."""

    sums: np.ndarray                                    # float32 (M, F, d)
    counts: np.ndarray                                  # (F, d)
    target: np.ndarray                                  # (M, d)

    @classmethod
    def of(cls, tiled: Tiled, pool: Pool, q: np.ndarray, classes: Classes) -> Answers:
        """One pass over the source for each noisy image."""
        dimension = pool.z.shape[1]
        tiles = dimension // classes.labels[0].shape[1]
        union = np.tile(np.any([label >= 0 for label in classes.labels], axis=0), (1, tiles))
        asked = Estimators.of(q, union.astype(np.float32), dimension)
        pairs = Rows(np.concatenate([[0], union.sum(1).cumsum()]), asked.places)
        columns, first = [], 0
        for label, size in zip(classes.labels, classes.sizes):
            here = np.tile(label, (1, tiles))[asked.rows, asked.places].astype(np.int64)
            on = (here >= 0).nonzero()[0]
            columns.append((on, (first + here[on]) * dimension + asked.places[on]))
            first += size
        on, place = (np.concatenate(part) for part in zip(*columns))

        def one(index: int) -> np.ndarray:
            log_weights = tiled.without(pool.ids[index])
            means, _ = tiled.moments(pool.z[index], pool.sigma, log_weights, asked.q, asked.span, pairs)
            return np.bincount(place, means[on], minlength=first * dimension).astype(np.float32)

        sums = np.stack(list(in_order(one, range(len(pool))))).reshape(len(pool), first, dimension)
        counts = np.bincount(place, minlength=first * dimension).reshape(first, dimension)
        return cls(sums, counts.astype(np.float64), pool.target)

    def errors(self, weights: np.ndarray) -> np.ndarray:
        """Mean squared error of each noisy image with weights (F,) or (F, d): (M,)."""
        weights = np.broadcast_to(weights.reshape(len(weights), -1), self.counts.shape)
        answer = np.einsum("mfd,fd->md", self.sums, weights) / (weights * self.counts).sum(0)
        return np.square(answer - self.target).mean(1)


def common(answers: Answers, start: np.ndarray) -> np.ndarray:
    """One t for all pixels, (F,): least squares with the denominator of the round before, in which Σ t c is 1."""
    weights = start + 1e-3 * start.max()
    for _ in range(ROUNDS):
        total = (weights[:, None] * answers.counts).sum(0)
        matrix = np.zeros((len(weights), len(weights)))
        for sums, target in zip(answers.sums, answers.target):
            rows = (sums - answers.counts * target) / total
            matrix += rows @ rows.T
        share = (answers.counts / total).mean(1)        # of the denominator; rows in these units add up to 1
        scaled = matrix / np.outer(share, share)
        scaled += 1e-6 * np.trace(scaled) / len(share) * np.eye(len(share))
        weights = least_squares(scaled, np.zeros(len(share))) / share
    return weights


def by_pixel(answers: Answers, weights: np.ndarray, ridges: Sequence[float], pixels: int) -> np.ndarray:
    """One t for each pixel, (ridges, F, d), ridged towards the common one: shares of estimators, which add up to 1.

    Channels that share r, d of more than one to a pixel, have one t.
    """
    counts, dimension = answers.counts, answers.counts.shape[1]
    result = np.zeros((len(ridges), *counts.shape))
    alone = np.square(answers.sums / counts.clip(1) - answers.target[:, None])[:, counts > 0]
    strengths = np.array(ridges) * alone.mean() * len(answers.sums) * (dimension // pixels)
    for pixel in range(pixels):
        here = np.arange(pixel, dimension, pixels)      # the channels of a pixel
        count = counts[:, pixel]
        on = count > 0
        shares = weights[on] * count[on] / (weights[on] * count[on]).sum()
        rows = answers.sums[:, on][:, :, here] / count[on, None] - answers.target[:, None, here]
        rows = rows.transpose(1, 0, 2).reshape(on.sum(), -1)
        matrix = rows @ rows.T
        for number, strength in enumerate(strengths):
            mixed = least_squares(matrix + strength * np.eye(len(matrix)), strength * shares)
            result[number][np.ix_(np.flatnonzero(on), here)] = (mixed / count[on])[:, None]
    return result
