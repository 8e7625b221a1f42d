"""Gauss–Newton for numbers that all estimators share: residuals, their derivatives by θ, normal equations (Eq. "obj").

With q_ℓ = Σ_k θ_k B_k(·; ℓ) and R fixed, D_j = Σ_ℓ r̃_ℓ(j) μ̂_ℓ(j), where r̃ is r divided by its sum, and

    ∂D_j / ∂θ_k = −1/(2σ²) Σ_ℓ r̃_ℓ(j) Cov_ℓ(x_j, G_k)        (`simd.moments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fpmc.engine.simd.gradients import Entries
from fpmc.engine.simd.moments import Rows, Tiled
from fpmc.images import ImageSet
from fpmc.learn.fit import least_squares
from fpmc.learn.places import Classes
from fpmc.process import Denoiser

T = TypeVar("T")


@dataclass(frozen=True)
class Pool:
    """Noisy images, what the network answers, and whose images are left out for each."""

    sigma: float
    z: np.ndarray                                       # float32 (M, d)
    target: np.ndarray                                  # float64 (M, d)
    ids: list[int]

    @classmethod
    def draw(cls, images: ImageSet, network: Denoiser, sigma: float, count: int, generator: torch.Generator) -> Pool:
        """z ~ p_t(z | x) for images in random order."""
        chosen = torch.randperm(len(images), generator=generator)
        chosen = chosen[torch.arange(count) % len(images)]
        x = images.scaled(chosen)
        z = x + sigma * torch.randn(x.shape, generator=generator)
        with torch.no_grad():
            target = torch.cat([network(part, sigma) for part in z.split(32)])
        return cls(sigma, z.flatten(1).numpy(), target.flatten(1).double().numpy(), images.ids[chosen].tolist())

    def __len__(self) -> int:
        return len(self.z)

    def first(self, count: int) -> Pool:
        """The first of them."""
        return replace(self, z=self.z[:count], target=self.target[:count], ids=self.ids[:count])


class Estimators(NamedTuple):
    """Entries of q, and entries (ℓ, j, r̃) of a response, sorted by ℓ."""

    q: Entries
    span: int                                           # places that a row of q has
    rows: np.ndarray                                    # ℓ (E,)
    places: np.ndarray                                  # j (E,)
    shares: np.ndarray                                  # r̃ (E,)

    @classmethod
    def of(cls, q: np.ndarray, r: np.ndarray, dimension: int) -> Estimators:
        """q (L, n); r (L, d), or (L, pixels) where the channels share it."""
        r = np.tile(r, (1, dimension // r.shape[1]))
        rows, places = r.nonzero()
        shares = (r / r.sum(0))[rows, places]
        return cls(Entries.of(torch.from_numpy(q).float()), q.shape[1], rows, places, shares)


class Equations(NamedTuple):
    """What one noisy image adds: squared error, JᵀJ and Jᵀe."""

    error: float
    matrix: np.ndarray                                  # (K, K)
    vector: np.ndarray                                  # (K,)


@dataclass(frozen=True)
class Problem:
    """Noisy images at some output dimensions each; what varies are numbers θ of classes of entries of q."""

    tiled: Tiled
    pool: Pool
    classes: Classes
    masks: np.ndarray                                   # bool (M, d): which dimensions of which noisy image count

    @cached_property
    def _features(self) -> tuple[np.ndarray, np.ndarray, int]:
        count = -(-len(self.classes) // 4) * 4
        return *self.classes.entries(count), count

    def errors(self, estimators: Estimators) -> np.ndarray:
        """Mean squared error of each noisy image where it counts, (M,)."""
        residuals = in_order(lambda index: self._residual(index, estimators, False)[1], range(len(self.pool)))
        return np.array([np.square(error).mean() for error in residuals])

    def equations(self, estimators: Estimators, chosen: Iterable[int]) -> Iterator[Equations]:
        """The normal equations of some noisy images, one by one."""
        yield from in_order(lambda index: self._equations(index, estimators), list(chosen))

    def _residual(
        self, index: int, estimators: Estimators, derivatives: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pairs that matter (indices into the entries of r̃), D − target where it counts, covariances (pairs, K)."""
        mask, pool = self.masks[index], self.pool
        pairs = mask[estimators.places].nonzero()[0]
        rows, starts = np.unique(estimators.rows[pairs], return_index=True)
        wanted = Rows(np.append(starts, len(pairs)), estimators.places[pairs])
        q, features, count = _taken(estimators.q, rows), None, 0
        if derivatives:
            ends, places, count = self._features
            features = _features_of(ends, places, count, rows)
        means, covariances = self.tiled.moments(
            pool.z[index], pool.sigma, self.tiled.without(pool.ids[index]), q, estimators.span, wanted, features, count
        )
        answer = np.bincount(wanted.places, estimators.shares[pairs] * means, minlength=mask.size)
        error = (answer - pool.target[index])[mask]
        return pairs, error, covariances[:, : len(self.classes)] * (-0.5 / pool.sigma**2)

    def _equations(self, index: int, estimators: Estimators) -> Equations:
        pairs, error, slopes = self._residual(index, estimators, True)
        column = np.cumsum(self.masks[index]) - 1       # where among those that count
        place, shares = column[estimators.places[pairs]], estimators.shares[pairs]
        matrix = csr_matrix((shares, (place, np.arange(len(pairs)))), (len(error), len(pairs)))
        jacobian = matrix @ slopes.astype(np.float64)
        return Equations(float(error @ error), jacobian.T @ jacobian, jacobian.T @ error)


def _taken(entries: Entries, rows: np.ndarray) -> Entries:
    """Some rows of them."""
    here, ends = _ranges(entries.ends, rows, rows + 1)
    return Entries(ends, entries.places[here], entries.values[here])


def _features_of(ends: np.ndarray, places: np.ndarray, count: int, rows: np.ndarray) -> Rows:
    """The features of some rows."""
    number = (rows[:, None] * count + np.arange(count)).ravel()
    here, inner = _ranges(ends, number, number + 1)
    return Rows(inner, places[here])


def _ranges(ends: np.ndarray, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices from ends[first] to ends[last] of each, one after the other, and where each begins in them."""
    lengths = ends[last] - ends[first]
    begins = np.concatenate([[0], lengths.cumsum()])
    return np.repeat(ends[first] - begins[:-1], lengths) + np.arange(begins[-1]), begins


def in_order(work: Callable[[int], T], items: Iterable[int]) -> Iterator[T]:
    """The results of all items in their order, by as many threads as torch has, few of them waiting at a time."""
    items, threads = list(items), torch.get_num_threads()
    with ThreadPoolExecutor(threads) as workers:
        for first in range(0, len(items), threads):
            yield from workers.map(work, items[first : first + threads])


def lean(
    matrix: np.ndarray, vector: np.ndarray, theta: np.ndarray, damping: np.ndarray, prices: np.ndarray, allowed: float
) -> np.ndarray:
    """argmin ‖e + J(u − θ)‖² + Σ damping (u − θ)² over u ≥ 0 (Levenberg, Marquardt), with some more of u at 0.

    As many as add at most `allowed` to what is minimised.
    One after the other, what adds least for its price: fixing u_k at 0 adds u_k² / (A⁻¹)_kk.
    """
    damped = matrix + np.diag(damping)
    wanted = damped @ theta - vector

    def solve(on: np.ndarray) -> tuple[np.ndarray, float]:
        u = np.zeros(len(theta))
        u[on] = least_squares(damped[np.ix_(on, on)], wanted[on], free=True)
        return u, float(u @ damped @ u - 2 * wanted @ u)

    best, least = solve(np.arange(len(theta)))
    while len(on := best.nonzero()[0]) > 1:
        added = np.square(best[on]) / np.diag(np.linalg.inv(damped[np.ix_(on, on)]))
        without = np.delete(on, np.argmin(added / prices[on]))
        u, cost = solve(without)
        if cost > least + allowed:
            break
        best = u
    return best
