"""The gradients of fine-tuning where q and r are 0 nearly everywhere: sums over their entries, images in vector lanes.

Formulas and names are those of `gradients`, the kernels those of `tiles`: here matrices become lists of entries, images
go into tiles, and noisy images are shared among threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fpmc.core.sources import Source, scale
from fpmc.engine.gradients import Fixed, Gradients
from fpmc.engine.simd.lanes import NOTHING
from fpmc.engine.simd.tiles import WIDTH, step


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


def loss_and_gradients(
    z: Tensor, target: Tensor, sigma: float, q: Tensor, r: Tensor, source: Source, fixed: Fixed, learn: tuple[str, ...]
) -> Gradients:
    """As `gradients.loss_and_gradients`, for float32 on the CPU."""
    tiles, log_weights = _lay_out(source)
    q_rows, r_rows = Entries.of(q.flatten(1)), Entries.of(r.flatten(1))
    sums = (r.double().sum(0) + fixed.total.double()).expand(z.shape[1:])
    noisy, aim, numerator = (part.float().flatten(1).contiguous().numpy() for part in (z, target, fixed.numerator))
    common = noisy, aim, numerator, sums.flatten().numpy(), np.float32(0.5 / sigma**2)
    spans = q[0].numel(), r[0].numel()

    def run(first: int, last: int) -> tuple[float, np.ndarray, np.ndarray]:
        grad_q, grad_r = np.zeros(len(q_rows.places)), np.zeros(len(r_rows.places))
        posteriors, answers = np.empty((2, len(tiles), len(q) * WIDTH), np.float32)
        loss = step(
            tiles, log_weights, first, last, *common, *q_rows, *r_rows, *spans, "q" in learn,
            posteriors, answers, grad_q, grad_r,
        )
        return loss, grad_q, grad_r

    threads = min(torch.get_num_threads(), len(z))
    bounds = np.linspace(0, len(z), threads + 1).astype(int)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(run, bounds[:-1], bounds[1:]))
    loss, grad_q, grad_r = (sum(part) for part in zip(*found))
    return Gradients(
        float(loss) / z.numel(),
        q_rows.spread(grad_q * q_rows.values * (-0.5 / sigma**2), q.shape) if "q" in learn else None,
        r_rows.spread(grad_r * r_rows.values, r.shape) if "r" in learn else None,
    )


def _lay_out(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Images with weight in tiles, float32 (tiles, d·WIDTH), and their log ν; the last tile is filled up with none."""
    images, weights = [], []
    for pixels, log_weights, _ in source.chunks(len(source)):
        on = slice(None) if log_weights is None else log_weights > -torch.inf
        images.append(scale(pixels[on], torch.float32).flatten(1))
        weights.append(torch.zeros(len(pixels)) if log_weights is None else log_weights[on].float())
    x, log_nu = torch.cat(images), torch.cat(weights)
    short = -len(x) % WIDTH
    x = torch.nn.functional.pad(x, (0, 0, 0, short)).view(-1, WIDTH, x.shape[1])
    log_nu = torch.nn.functional.pad(log_nu, (0, short), value=NOTHING)
    return x.mT.contiguous().flatten(1).numpy(), log_nu.numpy()
