"""Hyper-parameter schedules s(t), τ(t) found against a network (App. C.1)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from fpmc.core.fpmc import FPMC
from fpmc.errors import InputError
from fpmc.files import atomic
from fpmc.images import ImageSet
from fpmc.methods.schedules import METHODS, Table, read_table
from fpmc.presets import mixture
from fpmc.process import Denoiser, edm_grid
from fpmc.sampling import sample

Criterion = Literal["mse", "trajectory"]
BATCH = 64                                              # noisy images per call


@dataclass(frozen=True)
class Score:
    """One value of the hyper-parameter at one noise level."""

    sigma: float
    value: float
    mse: float                                          # to the network, over all noisy images and entries
    mse_se: float                                       # standard error over noisy images
    cosine: float                                       # between what both would take away, z − D


@dataclass(frozen=True)
class Calibration:
    """Scores of every value at every noise level, and the best of them."""

    method: str
    resolution: int
    criterion: Criterion
    scores: tuple[Score, ...]

    @property
    def schedule(self) -> dict[float, float]:
        """{σ: best value}: least error for "mse", greatest cosine for "trajectory"; a preset takes it."""
        best: dict[float, Score] = {}
        for score in self.scores:
            if score.sigma not in best or self._rank(score) < self._rank(best[score.sigma]):
                best[score.sigma] = score
        return {sigma: score.value for sigma, score in best.items()}

    def _rank(self, score: Score) -> float:
        return score.mse if self.criterion == "mse" else -score.cosine

    def save(self, path: str | PathLike[str]) -> None:
        """Write the schedule as a file that presets accept; columns of other methods already there stay."""
        schedule = self.schedule
        column = [int(v) if self.method in ("ls", "els", "pspc_square") else v for v in schedule.values()]
        columns: dict[str, Any] = {}
        try:
            old = read_table(path)
            if old.resolution == self.resolution and old.t == list(schedule):
                columns = {method: getattr(old, method) for method in old.methods}
        except InputError:
            pass                                        # nothing there to keep
        columns |= {self.method: column}
        table = Table(resolution=self.resolution, t=list(schedule), **columns)
        with atomic(path) as part:
            part.write_text(json.dumps(table.model_dump(exclude_none=True), indent=1), encoding="utf-8")


def forward_points(held_out: ImageSet, sigma: float, count: int, seed: int = 0) -> Tensor:
    """z ~ p_t(z | x) for held-out x, the same for every value tried: (count, C, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    x = held_out.scaled(torch.arange(count) % len(held_out))
    return x + sigma * torch.randn(x.shape, generator=generator)


def trajectory_points(
    network: Denoiser, shape: tuple[int, int, int], sigmas: Sequence[float], count: int, seed: int = 0
) -> dict[float, Tensor]:
    """Where the network's own sampling (18 steps of EDM's grid) is at the level nearest to each σ: (count, C, H, W)."""
    path = sample(network, seeds=range(seed, seed + count), shape=shape, trajectory=True)
    assert path.trajectory is not None
    passed = torch.tensor(path.sigmas[:-1]).log()
    return {sigma: path.trajectory[int((passed - math.log(sigma)).abs().argmin())] for sigma in sigmas}


def calibrate(
    make: Callable[[float], FPMC],
    values: Sequence[float],
    network: Denoiser,
    held_out: ImageSet,
    *,
    sigmas: Sequence[float] | None = None,
    count: int = 1000,
    criterion: Criterion = "mse",
    seed: int = 0,
) -> Iterator[Score]:
    """Try every value of a hyper-parameter at every noise level against the network (App. C.1).

    make: the method with one value everywhere, e.g. `lambda s: presets.ls(source, schedule=s)`; with one `Source` for
    all of them, patch sizes share their work. "mse" asks at noisy held-out images, "trajectory" along the network's own
    sampling.
    """
    if not values:
        raise InputError("no values to choose from; give at least one patch size or threshold")
    if criterion not in ("mse", "trajectory"):
        raise InputError(f"criterion {criterion!r} is unknown; use 'mse' or 'trajectory'")
    levels = [float(sigma) for sigma in (edm_grid().tolist() if sigmas is None else sigmas)]
    along = trajectory_points(network, held_out.shape, levels, count, seed) if criterion == "trajectory" else {}
    candidates = [make(value) for value in values]
    together = mixture(*candidates)
    for sigma in levels:
        z = along[sigma] if criterion == "trajectory" else forward_points(held_out, sigma, count, seed)
        with torch.no_grad():
            target = torch.cat([network(part, sigma) for part in z.split(BATCH)])
        if all(len(denoiser.at(sigma).groups) == 1 for denoiser in candidates):
            parts = [together.at(sigma).answers(part, sigma, candidates[0].settings) for part in z.split(BATCH)]
        else:
            parts = [[denoiser(part, sigma) for denoiser in candidates] for part in z.split(BATCH)]
        for value, *answers in zip(values, *parts):
            answer = torch.cat(answers)
            error = (answer - target).square().flatten(1).mean(1).double()     # (count,)
            cosine = torch.cosine_similarity((z - answer).flatten(1), (z - target).flatten(1))
            spread = error.std().item() / math.sqrt(len(error)) if len(error) > 1 else math.nan
            yield Score(sigma, float(value), error.mean().item(), spread, cosine.mean().item())


def calibration(method: str, resolution: int, criterion: Criterion, scores: Sequence[Score]) -> Calibration:
    """Put scores together; the method is one that has a schedule."""
    if method not in METHODS:
        raise InputError(f"{method!r} has no schedule; those that do: {', '.join(METHODS)}")
    return Calibration(method, resolution, criterion, tuple(scores))
