"""What is learned noise level by noise level: the loops, a file for each level, and the denoiser it comes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC, check_fpmc
from fpmc.errors import InputError
from fpmc.files import verify, write_checked
from fpmc.gate import check_denoiser, check_device
from fpmc.images import ImageSet, check_images
from fpmc.learn.calibrate import Criterion, Score, forward_points, score_level, trajectory_points
from fpmc.learn.finetune import TEMPLATES, Level, Tuning, TuningStep, read_state, recipe_for, train_level
from fpmc.learn.fit import Fit, Per, Target, fit_level, weigh
from fpmc.process import Denoiser
from fpmc.readers.text import read_json
from fpmc.readers.torches import read_torch, write_torch
from fpmc.study.cluster import Unit
from fpmc.study.policy import Policy


def level_file(folder: Path, sigma: float, kind: str) -> Path:
    """Where what belongs to one noise level is kept."""
    return folder / f"level-{sigma:.6g}.{kind}"


def level_units(folder: Path, sigmas: Sequence[float], kind: str = "pt", memory: float = 0.0) -> list[Unit]:
    """A unit of work for each noise level, for `cluster.Where`."""
    files = {sigma: level_file(folder, sigma, kind).relative_to(folder) for sigma in sigmas}
    return [Unit(f"{sigma!r}", sigma, (str(file),), f"σ {sigma:.4g}", memory=memory) for sigma, file in files.items()]


def _resumed(path: Path, sigma: float, read: Callable[[Path], Any]) -> Any:
    """What an earlier sitting kept for a noise level."""
    try:
        verify(path)
        found = read(path)
        if (found[0] if isinstance(found, list) else found).sigma != sigma:
            raise ValueError("it is another noise level's")
        return found
    except Exception as error:                          # whatever a damaged file does
        raise InputError(f"cannot resume from {path.name}: {error}; delete it to compute this level again") from error


# Fine-tuning


class Partly(Mapping[float, Collection]):
    """What was learned at some noise levels, and at the others of a grid the baseline as it was."""

    def __init__(self, baseline: FPMC, learned: Mapping[float, Collection], policy: Policy) -> None:
        self.baseline, self.learned = baseline, learned
        named = {policy.known(sigma) for sigma in learned}
        self.levels = sorted({*learned, *(sigma for sigma in policy.grid if sigma not in named)}, reverse=True)

    def __getitem__(self, sigma: float) -> Collection:
        if sigma not in self.levels:
            raise KeyError(sigma)
        return self.learned[sigma] if sigma in self.learned else self.baseline.at(sigma)

    def __iter__(self) -> Iterator[float]:
        return iter(self.levels)

    def __len__(self) -> int:
        return len(self.levels)


@dataclass(frozen=True)
class Finetuning:
    """Everything that learning a noise level takes."""

    denoiser: FPMC
    network: Denoiser
    policy: Policy
    tuning: Tuning
    training: ImageSet
    held_out: ImageSet
    device: str | torch.device = "cpu"
    folder: Path | None = None                          # of checkpoints; none: in memory only

    @classmethod
    def of(
        cls, denoiser: FPMC, network: Denoiser, policy: Policy, held_out: ImageSet | None = None, *,
        device: str | torch.device = "cpu", folder: Path | None = None, **tuning: Any,
    ) -> Finetuning:
        """With the policy's held-out images and weight decay, unless others are given."""
        check_fpmc(denoiser), check_denoiser(network), check_device(device)
        settings = Tuning(**{"decay_from": policy.decay_from, **tuning})
        training = policy.images if held_out is not None else policy.training
        return cls(denoiser, network, policy, settings, training, held_out or policy.tuning, device, folder)

    def start(self, sigma: float) -> Level:
        """A level, as it was before."""
        level = Level.start(self.denoiser.at(sigma), sigma, self.tuning, self.device)
        return replace(level, team=self.denoiser.team)

    def learn(self, level: Level) -> Iterator[TuningStep]:
        """Learn one level, from where an earlier sitting left it."""
        kept = None if self.folder is None else level_file(self.folder, level.sigma, "pt")
        return train_level(level, self.network, self.training, self.held_out, kept)

    def kept(self) -> dict[float, Level]:
        """All levels with a checkpoint, noisiest first."""
        assert self.folder is not None
        found = {}
        for path in self.folder.glob("level-*.pt"):
            level = self.start(read_state(path)["sigma"])
            level.load(path)
            found[level.sigma] = level
        return dict(sorted(found.items(), reverse=True))

    def model(self, learned: Mapping[float, Collection]) -> FPMC:
        """The denoiser: soft where it was learned, elsewhere as it was."""
        name = f"{self.denoiser.name} + soft {'/'.join(name.upper() for name in self.tuning.learn)}"
        collections = Partly(self.denoiser, learned, self.policy)
        return replace(self.denoiser, collections=collections, name=name, remake=None)


def finetune(
    denoiser: FPMC,
    network: Denoiser,
    images: ImageSet,
    *,
    learn: Sequence[str] = ("q", "r"),
    sigmas: Sequence[float] | None = None,
    held_out: ImageSet | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[TuningStep], None] | None = None,
    recipe: Literal["templates", "paper"] | None = None,
    **tuning: Any,
) -> FPMC:
    """Fine-tune Q, R or both of any FPMC against a network, independently at each noise level (Sections 4.1, 4.2).

    recipe: "templates" learns few shared numbers by second-order steps, which two cores can afford; "paper" is AdamW on
    every entry. By default templates, unless something of the paper's recipe is asked for or `device` is no CPU.
    sigmas: by default those of sampling; at the others the denoiser stays as it was. images: where z comes from, left
    out of the source by id; held_out: what the best step is chosen on, by default half of one image in ten of
    `images`, which then are not trained on. device: where the network is and the work is done. Other keywords are
    those of `Tuning`.
    """
    recipe = recipe or recipe_for(device, tuning)
    settings = {**(vars(TEMPLATES) if recipe == "templates" else {}), **tuning, "learn": tuple(learn), "recipe": recipe}
    job = Finetuning.of(denoiser, network, Policy(check_images(images)), held_out, device=device, **settings)
    learned = {}
    for sigma in job.policy.grid if sigmas is None else map(float, sigmas):
        level = job.start(sigma)
        for step in job.learn(level):
            if progress is not None:
                progress(step)
        learned[sigma] = level.result
    return job.model(learned)


# Response weights in closed form


def fit_levels(
    collections: FPMC,
    target: Target,
    images: ImageSet,
    sigmas: Sequence[float],
    *,
    folder: Path | None = None,                         # of a file for each level; none: in memory only
    **options: Any,                                     # of `fit_targets`
) -> Iterator[Fit]:
    """Weights of the groups at each noise level."""
    for sigma in sigmas:
        kept = None if folder is None else level_file(folder, sigma, "pt")
        if kept is not None and kept.exists():
            yield _resumed(kept, sigma, lambda path: Fit(**read_torch(path)))
            continue
        how = {"settings": collections.settings, "team": collections.team}
        found = fit_level(collections.at(sigma), sigma, target, images, **how, **options)
        if kept is not None:
            write_torch(kept, vars(found))
        yield found


def weighed(collections: FPMC, fits: Sequence[Fit], target: Target) -> FPMC:
    """The collections with these weights; between the levels they are interpolated."""
    levels = {fit.sigma: weigh(collections.at(fit.sigma), fit.weights) for fit in fits}
    suffix = "clean images" if isinstance(target, str) else getattr(target, "name", None) or "a network"
    name = f"{collections.name} fitted on {suffix}"
    return replace(collections, collections=levels, name=name, blend=True, remake=None)


def fit_response(
    collections: FPMC,
    target: Target,
    images: ImageSet,
    *,
    sigmas: Sequence[float] | None = None,
    count: int = 512,
    per: Per = "group",
    seed: int = 0,
    batch: int = 32,
    device: str | torch.device = "cpu",
    progress: Callable[[Fit], None] | None = None,
) -> FPMC:
    """How much say each group has at each noise level, in closed form; between the levels weights are interpolated.

    target: a network, or "clean" for the clean images themselves, which needs no network. images: where noisy images
    come from; those that are in a source are left out of it by id. sigmas: by default those of sampling. count: noisy
    images per level. device: where the groups and the network answer.
    """
    check_fpmc(collections)
    levels = [float(sigma) for sigma in (Policy(check_images(images)).grid if sigmas is None else sigmas)]
    options, fits = {"count": count, "per": per, "seed": seed, "batch": batch, "device": device}, []
    for found in fit_levels(collections, target, images, levels, **options):
        fits.append(found)
        if progress is not None:
            progress(found)
    return weighed(collections, fits, target)


# Schedules


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
    device: str | torch.device = "cpu",
    folder: Path | None = None,                         # of a file for each level; none: in memory only
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
    policy = Policy(held_out)
    levels = [float(sigma) for sigma in (policy.grid if sigmas is None else sigmas)]
    candidates: dict[float, FPMC] = {}
    along: dict[float, torch.Tensor] = {}
    for sigma in levels:
        kept = None if folder is None else level_file(folder, sigma, "json")
        if kept is not None and kept.exists():
            yield from _resumed(kept, sigma, lambda path: [Score(**each) for each in read_json(path, kind=list)])
            continue
        candidates = candidates or {value: make(value) for value in values}
        if criterion == "trajectory" and not along:
            sampling = {"steps": policy.steps, "device": device}
            along = trajectory_points(network, held_out.shape, levels, count, seed, **sampling)
        z = along[sigma] if along else forward_points(held_out, sigma, count, seed)
        scores = score_level(candidates, network, z.to(device), sigma)
        if kept is not None:
            write_checked(kept, json.dumps([asdict(score) for score in scores]))
        yield from scores
