"""Hyper-parameter schedules s(t), τ(t) found against a network, one noise level at a time (App. C.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from fpmc.methods.table1 import nearest
from fpmc.metrics import standard_error
from fpmc.presets import mixture
from fpmc.process import Denoiser
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
    network: Denoiser, shape: tuple[int, int, int], sigmas: Sequence[float], count: int, seed: int = 0, **sampling: Any
) -> dict[float, Tensor]:
    """Where the network is in its own sampling (settings of `sample`) at the level nearest to each σ: (count, …)."""
    path = sample(network, seeds=range(seed, seed + count), shape=shape, trajectory=True, **sampling)
    assert path.trajectory is not None
    place = {level: index for index, level in enumerate(path.sigmas[:-1])}
    return {sigma: path.trajectory[place[nearest(place, sigma)]] for sigma in sigmas}


def score_level(candidates: Mapping[float, FPMC], network: Denoiser, z: Tensor, sigma: float) -> list[Score]:
    """Every value of a hyper-parameter at one noise level: how near its denoiser is to the network (App. C.1)."""
    denoisers = list(candidates.values())
    with torch.no_grad():
        target = torch.cat([network(part, sigma) for part in z.split(BATCH)])
        if all(len(denoiser.at(sigma).groups) == 1 for denoiser in denoisers):
            together = mixture(*denoisers).at(sigma)    # patch sizes share their work
            parts = [together.answers(part, sigma, denoisers[0].settings) for part in z.split(BATCH)]
        else:
            parts = [[denoiser(part, sigma) for denoiser in denoisers] for part in z.split(BATCH)]
    scores = []
    for value, *answers in zip(candidates, *parts):
        answer = torch.cat(answers)
        error = (answer - target).square().flatten(1).mean(1).double()         # (count,)
        cosine = torch.cosine_similarity((z - answer).flatten(1), (z - target).flatten(1))
        mse, spread = error.mean().item(), standard_error(error)
        scores.append(Score(sigma, float(value), mse, spread, cosine.mean().item()))
    return scores


def calibration(method: str, resolution: int, criterion: Criterion, scores: Sequence[Score]) -> Calibration:
    """Put scores together; the method is one that has a schedule."""
    if method not in METHODS:
        raise InputError(f"{method!r} has no schedule; those that do: {', '.join(METHODS)}")
    return Calibration(method, resolution, criterion, tuple(scores))
