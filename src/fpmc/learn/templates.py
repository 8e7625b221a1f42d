"""Soft Q and R of one noise level by templates: second-order steps on few shared numbers, and R in closed form.

The objective is Eq. "obj", on a fixed pool of noisy training images, each with its own image left out of the source;
the network is asked once. q_ℓ = Σ_k θ_k B_k(·; ℓ), θ ≥ 0, with one θ for all estimators; r likewise for classes of
entries (`places`), then with weights for each pixel, drawn towards the common ones. The start, θ = 1 for the binary q
and 0 for the rest, is the denoiser as it was. A step counts only if it lowers the error on held-out images, and so does
the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from fpmc.core.gaussian import fit_gaussian
from fpmc.engine.simd.moments import Tiled
from fpmc.images import ImageSet
from fpmc.learn.mixing import RIDGES, Answers, by_pixel, common
from fpmc.learn.newton import Estimators, Pool, Problem, lean
from fpmc.learn.places import Classes, Places
from fpmc.process import Denoiser

BLOCK = 8                                               # pixels a side that a noisy image counts in for shared θ
GRADED = 4096                                           # dimensions up to which there is a Wiener filter to look at
STEPS = 4                                               # of shared θ
TURNS = 2                                               # so many of them to see every noisy image
TRIALS = 3                                              # of each, with more and more damping
DAMPING = 1e-2                                          # to begin with, relative to the diagonal
ENOUGH = 0.003                                          # relative gain below which steps end
LEAN = 0.003                                            # of the error: what may be given away for entries of q
ROUGHLY = 1 / 3                                         # of the noisy images, for R before Q


@dataclass
class Draft:
    """q and r of a level on their way."""

    places: Places
    tiled: Tiled
    fit: Pool
    check: Pool                                         # held-out noisy images that choices are made on
    generator: torch.Generator
    q_classes: Classes
    r_classes: Classes
    q: np.ndarray = field(init=False)                   # (L, n)
    r: np.ndarray = field(init=False)
    theta: np.ndarray = field(init=False)               # (K,)
    weights: np.ndarray = field(init=False)             # of the classes of r, (F,) or (F, d)
    held: np.ndarray = field(init=False)                # blocks of `check` that steps are judged on
    baseline: float = field(init=False)                 # error on `check` at the start
    error: float = field(init=False)                    # and at the end

    def __post_init__(self) -> None:
        self.theta, self.weights = self.q_classes.start(), self.r_classes.start()
        self._begin()
        self.held = self.blocks(len(self.check))
        self.baseline = self.error = self.full_error()

    def _begin(self) -> None:
        self.q, self.r = (part.reshape(len(part), -1).astype(np.float64) for part in (self.places.q, self.places.r))

    @classmethod
    def begin(
        cls, places: Places, sigma: float, network: Denoiser, images: ImageSet, held_out: ImageSet, *,
        pool: int, check: int, generator: torch.Generator,
    ) -> Draft:
        """The level as it is, with its pools and classes."""
        dimension = int(np.prod(places.shape))
        q_classes = places.binary() + places.displacements(places.q.shape[1], places.reach, mirrored=True)
        if dimension <= GRADED:
            q_classes += places.graded(fit_gaussian(places.source), sigma)
        r_classes = places.rings() + places.displacements(places.r.shape[1])
        drawn = Pool.draw(images, network, sigma, pool, generator)
        held = Pool.draw(held_out, network, sigma, check, generator)
        return cls(places, Tiled(places.source), drawn, held, generator, q_classes, r_classes)

    @property
    def dimension(self) -> int:
        return self.fit.z.shape[1]

    @property
    def alike(self) -> bool:
        """All estimators have the same q, as where masks are full: one answers for all, and r changes nothing."""
        return bool((self.q == self.q[0]).all())

    def estimators(self, q: np.ndarray | None = None) -> Estimators:
        return Estimators.of(self.q if q is None else q, self.r, self.dimension)

    def problem(self, pool: Pool, masks: np.ndarray) -> Problem:
        return Problem(self.tiled, pool, self.q_classes, masks)

    def full_error(self) -> float:
        """On all of the held-out images."""
        everything = np.ones((len(self.check), self.dimension), bool)
        estimators = self.estimators()
        if self.alike:
            estimators = Estimators.of(self.q[:1], np.ones((1, self.r.shape[1])), self.dimension)
        return float(self.problem(self.check, everything).errors(estimators).mean())

    def held_error(self, q: np.ndarray | None = None) -> float:
        """On blocks of them."""
        return float(self.problem(self.check, self.held).errors(self.estimators(q)).mean())

    def blocks(self, count: int) -> np.ndarray:
        """bool (count, d): `BLOCK`×`BLOCK` pixels of each noisy image, together all over the image."""
        channels, height, width = self.places.shape
        tops, lefts = ([*range(0, size - BLOCK, BLOCK), size - BLOCK] for size in (height, width))
        corners = [(y, x) for y in tops for x in lefts]
        order = torch.randperm(len(corners) * -(-count // len(corners)), generator=self.generator)[:count].tolist()
        masks = np.zeros((count, channels, height, width), bool)
        for mask, number in zip(masks, order):
            y, x = corners[number % len(corners)]
            mask[:, y : y + BLOCK, x : x + BLOCK] = True
        return masks.reshape(count, -1)

    # R in closed form

    def mix(self, part: float = 1.0) -> None:
        """The best r for q as it is, for all pixels alike or for each pixel, whatever held-out images like best.

        part: of the noisy images that are asked.
        """
        if self.alike:
            self.error = self.full_error()
            return
        pools = (pool.first(max(1, round(part * len(pool)))) for pool in (self.fit, self.check))
        fit, check = (Answers.of(self.tiled, pool, self.q, self.r_classes) for pool in pools)
        shared = common(fit, self.r_classes.start())
        pixels = self.dimension * self.places.r.shape[1] // self.places.shape[0]
        tried = [self.weights, shared, *by_pixel(fit, shared, RIDGES, pixels)]
        errors = [float(check.errors(weights).mean()) for weights in tried]
        best = int(np.argmin(errors))
        if best > 0:
            self.weights, self.r = tried[best], response(self.r_classes, tried[best])
        self.error = errors[best]

    # Q by Gauss–Newton

    def share(self) -> None:
        """One θ for all estimators, by steps that lower the error on blocks of held-out images."""
        before, damping = self.held_error(), DAMPING
        for number in range(STEPS):
            some = range(number % TURNS, len(self.fit), TURNS)
            parts = list(self.problem(self.fit, self.blocks(len(self.fit))).equations(self.estimators(), some))
            matrix = np.sum(np.stack([part.matrix for part in parts]), 0)
            vector = np.sum(np.stack([part.vector for part in parts]), 0)
            allowed = LEAN * sum(part.error for part in parts)
            scale = np.diag(matrix) + 1e-6 * np.trace(matrix) / len(matrix)
            for _ in range(TRIALS):
                theta = lean(matrix, vector, self.theta, damping * scale, self.q_classes.counts, allowed)
                q = self.q_classes.values(theta)
                error = self.held_error(q)
                if error < before:
                    break
                damping *= 10
            else:
                break
            gain, before, damping = 1 - error / before, error, damping / 3
            self.theta, self.q = theta, q
            if gain < ENOUGH:
                break

    def settle(self, mixed: bool) -> float:
        """The error on held-out images, which mixing knows; if it is no lower than at the start, that is restored."""
        if not mixed:
            self.error = self.full_error()
        if self.error >= self.baseline:
            self.error = self.baseline
            self._begin()
        return self.error

    def vectors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """q and r, (L, C or 1, H, W)."""
        q, r = (
            torch.from_numpy(part.astype(np.float32)).view(len(part), -1, *self.places.shape[1:])
            for part in (self.q, self.r)
        )
        return q, r


def response(classes: Classes, weights: np.ndarray) -> np.ndarray:
    """r (L, n) of weights (F,), or (F, d) with weights for each pixel."""
    if weights.ndim == 1:
        return classes.values(weights)
    result, first = np.zeros_like(classes.labels[0], dtype=np.float64), 0
    here = np.arange(classes.labels[0].shape[1])
    for label, size in zip(classes.labels, classes.sizes):
        own = np.vstack([weights[first : first + size, : len(here)], np.zeros(len(here))])
        result += own[label, here]
        first += size
    return result


def stages(draft: Draft, learn: Sequence[str]) -> Iterator[float | None]:
    """Q and R in turn, R last; after the last stage the error on held-out images."""
    steps = [draft.share] if "q" in learn else []
    if "r" in learn:
        steps = [partial(draft.mix, ROUGHLY), *steps, draft.mix] if steps else [draft.mix]
    for number, each in enumerate(steps, 1):
        each()
        yield draft.settle("r" in learn) if number == len(steps) else None
