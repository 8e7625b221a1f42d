"""The gradients of fine-tuning where q and r are 0 nearly everywhere: sums over their entries, images in vector lanes.

Formulas and names are those of `gradients`, the kernels those of `tiles`: here matrices become lists of entries, images
go into tiles, and there is a noisy image at a time for each thread.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fpmc.core.sources import Source, scale
from fpmc.engine.gradients import Fixed, Gradients
from fpmc.engine.run import Alone, ours
from fpmc.engine.simd.lanes import NOTHING
from fpmc.engine.simd.tiles import WIDTH, add_slopes, answer_all, average, pull_all, weigh_all
from fpmc.engine.state import State, fade


class Entries(NamedTuple):
    """What is not 0 in a matrix, row by row."""

    ends: np.ndarray                                    # int64 (rows + 1,)
    places: np.ndarray                                  # int64 (entries,)
    values: np.ndarray                                  # float32 (entries,)

    @classmethod
    def of(cls, matrix: Tensor) -> Entries:
        on = matrix != 0
        ends = np.concatenate([[0], on.sum(1).cumsum(0).numpy()])
        return cls(ends, on.nonzero()[:, 1].numpy(), matrix[on].numpy())

    def spread(self, values: np.ndarray, shape: torch.Size) -> Tensor:
        """The matrix that has these values instead."""
        rows = np.repeat(np.arange(len(self.ends) - 1), np.diff(self.ends))
        matrix = np.zeros((len(self.ends) - 1, shape.numel() // shape[0]), np.float32)
        matrix[rows, self.places] = values
        return torch.from_numpy(matrix).view(shape)


class Problem(NamedTuple):
    """What all noisy images have in common."""

    tiles: np.ndarray                                   # our images, float32 (tiles, d·WIDTH)
    log_weights: np.ndarray                             # float32 (tiles·WIDTH,)
    q: Entries
    r: Entries
    q_span: int
    r_span: int
    scale: np.float32                                   # 1/(2σ²)


class Sums(NamedTuple):
    """What several noisy images sum over our images, a row for each: the team merges them."""

    top: Tensor                                         # (n, L), the largest logit
    mass: Tensor                                        # (n, L), Σ exp(logit − top)
    numerator: Tensor                                   # (n, d), Σ r Σ p x
    centre: Tensor                                      # (n, L), Σ p a

    @classmethod
    def empty(cls, count: int, estimators: int, dimension: int) -> Sums:
        mass, centre = torch.empty(2, count, estimators, dtype=torch.float64)
        return cls(torch.empty(count, estimators), mass, torch.empty(count, dimension, dtype=torch.float64), centre)


class Noisy:
    """One noisy image after the other, with room for its posteriors and what is added up over all of them."""

    def __init__(self, problem: Problem, sums: Sums) -> None:
        self.problem, size = problem, (len(problem.tiles), len(sums.top) * WIDTH)
        self.top, self.mass, self.numerator, self.centre = (each.numpy() for each in sums)
        self.kept, self.answers = _aligned(*size), _aligned(*size)
        self.s, self.a = _aligned(problem.q_span * WIDTH), _aligned(problem.r_span * WIDTH)
        self.means = np.empty((len(self.numerator) // problem.r_span, len(problem.r.places)))
        self.grad_q, self.grad_r = np.zeros(len(problem.q.places)), np.zeros(len(problem.r.places))

    def weigh(self, z: np.ndarray) -> None:
        """Posteriors, but for their sum over all images."""
        p = self.problem
        self.z = z
        weigh_all(p.tiles, p.log_weights, z, p.scale, *p.q, self.s, self.kept, self.top, self.mass)

    def average(self, share: np.ndarray, present: np.ndarray) -> None:
        """What our images add to Σ r μ̂; `share` turns what is kept into posteriors, Σ p of which are `present`."""
        p = self.problem
        self.share, self.present = share.astype(np.float32), present
        average(p.tiles, self.kept, self.share, *p.r, p.r_span, self.means, self.numerator)

    def slope(self, v: np.ndarray, denoised: np.ndarray, learns_q: bool) -> None:
        """Add to ∂r, and find our part of ā."""
        p = self.problem
        add_slopes(self.means, self.present, v, denoised, p.r.ends, p.r.places, p.r_span, self.grad_r)
        if learns_q:
            single = v.astype(np.float32), denoised.astype(np.float32)
            answer_all(p.tiles, self.kept, self.share, *single, *p.r, self.a, self.answers, self.centre)

    def pull(self, centre: np.ndarray) -> None:
        """Add to ∂q."""
        p = self.problem
        pull_all(
            p.tiles, self.kept, self.share, self.answers, centre, self.z, p.q.ends, p.q.places, self.s, self.grad_q
        )


def loss_and_gradients(
    z: Tensor, target: Tensor, sigma: float, q: Tensor, r: Tensor, source: Source, fixed: Fixed,
    learn: tuple[str, ...], team: Alone | None = None,
) -> Gradients:
    """As `gradients.loss_and_gradients`, for float32 on the CPU."""
    team = team or Alone()
    q_rows, r_rows = Entries.of(q.flatten(1)), Entries.of(r.flatten(1))
    spans = q[0].numel(), r[0].numel()
    problem = Problem(*_lay_out(source, team), q_rows, r_rows, *spans, np.float32(0.5 / sigma**2))
    total = (r.double().sum(0) + fixed.total.double()).expand(z.shape[1:]).flatten().numpy()
    noisy, aim, beside = (part.float().flatten(1).contiguous().numpy() for part in (z, target, fixed.numerator))
    learns_q, together, loss = "q" in learn, min(team.threads(), len(z)), 0.0
    sums = Sums.empty(together, len(q), noisy.shape[1])
    rooms = [Noisy(problem, Sums(*row)) for row in zip(*sums)]
    with ThreadPoolExecutor(together) as pool:
        every = map if together == 1 else pool.map      # type: ignore[assignment]
        for first in range(0, len(z), together):
            here = slice(first, first + together)
            some, count = rooms[: len(noisy[here])], len(noisy[here])
            list(every(Noisy.weigh, some, noisy[here]))
            list(every(Noisy.average, some, *_shares(State(sums.top[:count].double(), sums.mass[:count]), team)))
            (answers,) = team.sums([sums.numerator[:count]])
            denoised = (answers.numpy() + beside[here]) / total
            error = denoised - aim[here]
            loss += float(np.square(error).sum())
            list(every(Noisy.slope, some, 2 * error / (z.numel() * total), denoised, repeat(learns_q)))
            if learns_q:
                list(every(Noisy.pull, some, team.sums([sums.centre[:count]])[0].numpy()))
    found = [torch.from_numpy(sum(each)) for each in zip(*((room.grad_q, room.grad_r) for room in rooms))]
    grad_q, grad_r = (each.numpy() for each in team.sums(found))
    return Gradients(
        loss / z.numel(),
        q_rows.spread(grad_q * q_rows.values * (-0.5 / sigma**2), q.shape) if learns_q else None,
        r_rows.spread(grad_r * r_rows.values, r.shape) if "r" in learn else None,
    )


def _shares(own: State, team: Alone) -> tuple[np.ndarray, np.ndarray]:
    """For each noisy image and estimator 1 / Σ over all images, relative to our top, and our part of that sum."""
    (state,) = team.states([own])
    faded = fade(own.top, state.top)
    return (faded / state.mass).numpy(), (own.mass * faded / state.mass).numpy()


def _aligned(*shape: int) -> np.ndarray:
    """Room for float32 where vectors lie well: torch begins at multiples of 64 bytes, numpy of 16."""
    return torch.empty(shape).numpy()


def _lay_out(source: Source, team: Alone) -> tuple[np.ndarray, np.ndarray]:
    """Our images with weight in tiles, float32 (tiles, d·WIDTH), and log ν; the last tile is filled up with none."""
    dimension = source.shape[0] * source.shape[1] * source.shape[2]
    images, weights = [torch.zeros(0, dimension)], [torch.zeros(0)]
    for stretch in ours(source, len(source), team):
        for pixels, log_weights, _ in source.chunks(len(source), *stretch):
            on = slice(None) if log_weights is None else log_weights > -torch.inf
            images.append(scale(pixels[on], torch.float32).flatten(1))
            weights.append(torch.zeros(len(pixels)) if log_weights is None else log_weights[on].float())
    x, log_nu = torch.cat(images), torch.cat(weights)
    short = -len(x) % WIDTH
    x = torch.nn.functional.pad(x, (0, 0, 0, short)).view(-1, WIDTH, dimension)
    log_nu = torch.nn.functional.pad(log_nu, (0, short), value=NOTHING)
    return x.mT.contiguous().flatten(1).numpy(), log_nu.numpy()
