"""Soft Q and R of one noise level, learned end to end against a network (Sections 4.1, 4.2, App. C.3).

Two recipes minimise the same objective: the paper's, AdamW on every entry, and `templates`, which a CPU can afford.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fpmc import engine
from fpmc.core.collection import Collection
from fpmc.core.gaussian import Gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Precisions
from fpmc.core.response import of as response_of
from fpmc.core.sources import Source
from fpmc.engine import settings
from fpmc.engine.gradients import Fixed, loss_and_gradients
from fpmc.errors import InputError
from fpmc.files import verify
from fpmc.gate import whole
from fpmc.images import ImageSet
from fpmc.process import Denoiser
from fpmc.readers.torches import read_torch, write_torch

NEUTRAL = 0.01                                          # what entries raised from 0 may change, in nats or shares


@dataclass(frozen=True)
class Tuning:
    """How to fine-tune; the defaults are the paper's (App. C.3) where it says.

    Of `templates`, only learn, pool, validation and seed count.
    """

    recipe: Literal["paper", "templates"] = "paper"
    learn: tuple[str, ...] = ("q", "r")
    steps: int = 2000
    batch: int = 256
    rate: float = 0.05                                  # AdamW, β = 0.9, 0.999, ε = 1e-8
    decay: float = 0.01                                 # of log q and log r, so towards 1, not towards 0
    decay_from: float = math.inf                        # noise level from which decay is on; `Policy` knows it
    floor_q: float | None = None                        # zeros of q start here; None: neutral; 0: zeros stay 0
    floor_r: float | None = None                        # zeros of r likewise; the paper's is 1e-3 for both
    monte_carlo: int | None = None                      # images drawn for each step instead of the whole source
    leave_out: bool = True                              # ν = 0 for the images of the batch and their copies
    validate_every: int | None = None                   # steps; None: an epoch
    validation: int = 1000                              # noisy images to validate on
    validation_source: int | None = None                # images of the source used there; None: all
    patience: int = 5                                   # validations without a better one before stopping
    pool: int = 128                                     # noisy images that templates are learned from
    seed: int = 0
    memory: int = 1 << 30

    def __post_init__(self) -> None:
        if not self.learn or not set(self.learn) <= {"q", "r"}:
            raise InputError(f"learn {self.learn!r}: name 'q', 'r' or both")
        if self.recipe not in ("paper", "templates"):
            raise InputError(f"recipe {self.recipe!r} is unknown; use 'templates' or 'paper'")
        optional = ("monte_carlo", "validate_every", "validation_source")
        for name in ("steps", "batch", "validation", "patience", "pool", *optional):
            if (count := getattr(self, name)) is not None and (whole(count) is None or count < 1):
                raise InputError(f"{name} {count}: a whole number from 1 on is needed")
        for name in ("rate", "decay"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)} must be finite and not negative")


SHARED = {"pool", "validation", "seed"}                 # settings that templates have too
TEMPLATES = Tuning(recipe="templates", steps=3, validation=64)     # steps are stages: R, Q, R


def recipe_for(device: str | torch.device, given: Iterable[str]) -> Literal["paper", "templates"]:
    """Templates on a CPU, unless settings are given that only the paper's recipe has."""
    return "templates" if torch.device(device).type == "cpu" and set(given) <= SHARED else "paper"


@dataclass(frozen=True)
class TuningStep:
    """One step of one noise level."""

    sigma: float
    step: int
    loss: float | None                                  # of the batch, if it is the paper's recipe
    validation: float | None                            # mean squared error on held-out images, when it was measured
    seconds: float


@dataclass
class Level:
    """Soft q and r of one noise level, on their way; estimators with a Gaussian source stay as they are."""

    sigma: float
    tuning: Tuning
    log_q: Tensor                                       # θ (L, C or 1, H, W); −inf: fixed at 0
    log_r: Tensor                                       # φ
    source: Source
    origin: Collection                                  # where it started, before floors
    fixed: tuple[Group, ...] = ()                       # Gaussian groups, not learned
    team: engine.Alone | None = None                    # who shares the source; None: nobody
    step: int = 0
    baseline: float = math.nan                          # held-out error of `origin`
    best: float = math.inf
    best_step: int = -1
    best_log_q: Tensor | None = None
    best_log_r: Tensor | None = None
    history: list[list[float]] = field(default_factory=list)                   # step, loss, validation or nan

    @classmethod
    def start(
        cls, collection: Collection, sigma: float, tuning: Tuning, device: str | torch.device = "cpu"
    ) -> Level:
        """θ = log max(q, floor), φ = log max(r, floor): the binary collection, nearly or exactly (App. C.3)."""
        fixed = tuple(group for group in collection.groups if isinstance(group.source, Gaussian))
        learned = [group for group in collection.groups if not isinstance(group.source, Gaussian)]
        sources = {id(group.source): group.source for group in learned}
        source = next(iter(sources.values()), None)
        if len(sources) != 1 or not isinstance(source, Source):
            kinds = [type(group.source).__name__ for group in collection.groups]
            raise InputError(
                f"fine-tuning learns groups that share one source of images, beside Gaussian ones; this collection has "
                f"{len(sources)} sources to learn from in groups of {', '.join(kinds)}"
            )
        q, r = _joined([group.q.dense() for group in learned]), _joined([group.response() for group in learned])
        floor_q = neutral_floor_q(collection.shape, sigma) if tuning.floor_q is None else tuning.floor_q
        floor_r = NEUTRAL * collection.total.min().item() / len(r) if tuning.floor_r is None else tuning.floor_r
        learns_q, learns_r = (name in tuning.learn and tuning.recipe == "paper" for name in ("q", "r"))
        return cls(
            sigma,
            tuning,
            (q.clamp(min=floor_q) if learns_q else q).log().to(device),
            (r.clamp(min=floor_r) if learns_r else r).log().to(device),
            source,
            collection,
            fixed,
        )

    @property
    def free(self) -> tuple[str, ...]:
        """Which of those to learn can change an answer: where one estimator alone answers, its r cancels."""
        alone = not self.fixed and bool((self.log_r > -math.inf).sum(0).eq(1).all())
        return tuple(name for name in self.tuning.learn if not (name == "r" and alone))

    @property
    def collection(self) -> Collection:
        """The collection as it is now."""
        return self._soft(self.log_q, self.log_r)

    @property
    def result(self) -> Collection:
        """The collection of the best validation so far."""
        if self.best_log_q is None or self.best_log_r is None:
            return self.collection
        return self._soft(self.best_log_q, self.best_log_r)

    def _soft(self, log_q: Tensor, log_r: Tensor) -> Collection:
        q = Precisions(log_q.detach().exp().cpu())
        r = response_of(log_r.detach().exp().cpu(), q)  # where each dimension has one estimator, and kept it: one pass
        return Collection.of(Group(q, r, self.source), *self.fixed)

    def answer_of_fixed(self, z: Tensor) -> Fixed | None:
        """What the estimators that are not learned say."""
        if not self.fixed:
            return None
        plan = engine.make_plan(self.fixed, engine.Call.of(z, self.sigma))
        total = torch.stack([group.total().expand(z.shape[1:]) for group in self.fixed]).sum(0)
        return Fixed(engine.denoise(plan, z, torch.ones(z.shape[1:])), total)

    def save(self, path: Path, optimiser: torch.optim.Optimizer | None = None) -> None:
        """Everything needed to resume."""
        state = {name: getattr(self, name) for name in _STATE}
        state["optimiser"] = {} if optimiser is None else optimiser.state_dict()
        write_torch(path, state)

    def load(self, path: Path, optimiser: torch.optim.Optimizer | None = None) -> None:
        """Take over what `save` wrote."""
        state = read_state(path, self.log_q.device)
        if state.pop("sigma") != self.sigma:
            raise InputError(f"cannot resume from {path.name}: it is another noise level's; delete it")
        momenta = state.pop("optimiser")
        if optimiser is not None:
            optimiser.load_state_dict(momenta)
        for name, value in state.items():
            if isinstance(value, Tensor) and name in ("log_q", "log_r") and optimiser is not None:
                getattr(self, name).data.copy_(value)   # which the optimiser has
            else:
                setattr(self, name, value)


_STATE = ("sigma", "log_q", "log_r", "step", "baseline", "best", "best_step", "best_log_q", "best_log_r", "history")


def read_state(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """A level's checkpoint."""
    try:
        verify(path)
        state = read_torch(path)
        state = {name: state[name] for name in (*_STATE, "optimiser")}
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in state.items()}
    except Exception as error:                          # whatever a damaged file does
        raise InputError(f"cannot resume from {path.name}: {error}; delete it to start this level again") from error


def neutral_floor_q(shape: tuple[int, int, int], sigma: float) -> float:
    """A floor that moves no logit by more than about `NEUTRAL`: (z − x)² is about σ² + 1/2 in each of d dimensions."""
    dimension = shape[0] * shape[1] * shape[2]
    return NEUTRAL * 2 * sigma**2 / (dimension * (sigma**2 + 0.5))


def train_level(
    level: Level,
    network: Denoiser,
    images: ImageSet,
    held_out: ImageSet,
    checkpoint: Path | None = None,
) -> Iterator[TuningStep]:
    """Minimise Eq. "obj" at one noise level; a record for each step. Resumes from `checkpoint` where there is one.

    The work is done where the level's q and r are; the network answers there too.
    Everything random depends on (seed, σ, step) alone, so an interrupted run resumes as if it had not been.
    """
    if level.tuning.recipe == "templates":
        yield from _by_templates(level, network, images, held_out, checkpoint)
        return
    tuning, sigma = level.tuning, level.sigma
    free = level.free
    decay = tuning.decay if sigma >= tuning.decay_from * 0.999 else 0.0
    learned = [getattr(level, f"log_{name}") for name in free or tuning.learn]      # AdamW wants some
    optimiser = torch.optim.AdamW(learned, lr=tuning.rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    if checkpoint is not None and checkpoint.exists():
        level.load(checkpoint, optimiser)
    every = tuning.validate_every or max(1, len(images) // tuning.batch)
    judge = _Validation(level, network, held_out)
    if level.best_log_q is None:
        level.baseline, level.best_step = judge(level.origin), 0
        raised = (tuning.floor_q, tuning.floor_r) != (0, 0)                     # else it starts as the origin
        level.best = judge(level.collection) if raised else level.baseline
        level.best_log_q, level.best_log_r = level.log_q.clone(), level.log_r.clone()
        level.history.append([0, math.nan, level.best])
        if checkpoint is not None:
            level.save(checkpoint, optimiser)
    while free and level.step < tuning.steps and not _stale(level, every):
        started = time.perf_counter()
        generator = _generator(tuning.seed, sigma, level.step)
        chosen = torch.randperm(len(images), generator=generator)[: tuning.batch]
        x = images.scaled(chosen)
        z = (x + sigma * torch.randn(x.shape, generator=generator)).to(level.log_q.device)
        source = level.source.without(images.ids[chosen]) if tuning.leave_out else level.source
        source = _drawn(source, tuning.monte_carlo, generator)
        q, r = level.log_q.exp(), level.log_r.exp()
        with torch.no_grad():
            target = network(z, sigma)
        fixed = level.answer_of_fixed(z)
        found = loss_and_gradients(
            z, target, sigma, q, r, source, fixed=fixed, learn=free, memory=tuning.memory, team=level.team
        )
        level.log_q.grad, level.log_r.grad = found.log_q, found.log_r
        optimiser.step()
        level.step += 1
        validation = None
        if level.step % every == 0 or level.step == tuning.steps:
            validation = judge(level.collection)
            if validation < level.best:
                level.best, level.best_step = validation, level.step
                level.best_log_q, level.best_log_r = level.log_q.clone(), level.log_r.clone()
        level.history.append([level.step, found.loss, math.nan if validation is None else validation])
        if validation is not None and checkpoint is not None:
            level.save(checkpoint, optimiser)
        yield TuningStep(sigma, level.step, found.loss, validation, time.perf_counter() - started)


def _by_templates(
    level: Level, network: Denoiser, images: ImageSet, held_out: ImageSet, checkpoint: Path | None
) -> Iterator[TuningStep]:
    """The stages of `templates`; a level is done or not begun."""
    if level.log_q.device.type != "cpu" or not settings.has_numba():
        raise InputError("recipe 'templates' needs a CPU and numba; use recipe 'paper', which runs anywhere")
    from fpmc.learn import templates  # numba takes a second to import

    if checkpoint is not None and checkpoint.exists():
        level.load(checkpoint)
        return
    tuning, started = level.tuning, time.perf_counter()
    draft = templates.Draft.begin(
        templates.Places.of(level.origin), level.sigma, network, images, held_out,
        pool=tuning.pool, check=tuning.validation, generator=_generator(tuning.seed, level.sigma, 0),
    )
    level.baseline = draft.baseline
    level.history.append([0, math.nan, draft.baseline])
    for error in templates.stages(draft, tuning.learn):
        level.step += 1
        level.log_q, level.log_r = (values.log() for values in draft.vectors())
        level.history.append([level.step, math.nan, math.nan if error is None else error])
        yield TuningStep(level.sigma, level.step, None, error, time.perf_counter() - started)
        started = time.perf_counter()
    level.best, level.best_step = draft.error, level.step
    level.best_log_q, level.best_log_r = level.log_q, level.log_r
    if checkpoint is not None:
        level.save(checkpoint)


class _Validation:
    """Mean squared error to the network on fixed noisy images; the answers of the network are asked once."""

    def __init__(self, level: Level, network: Denoiser, held_out: ImageSet) -> None:
        tuning, sigma = level.tuning, level.sigma
        generator = _generator(tuning.seed, sigma, -1)
        chosen = torch.arange(tuning.validation) % len(held_out)
        x = held_out.scaled(chosen)
        self.z = (x + sigma * torch.randn(x.shape, generator=generator)).to(level.log_q.device)
        with torch.no_grad():
            self.target = torch.cat([network(part, sigma) for part in self.z.split(64)])
        source = level.source.without(held_out.ids[chosen])
        self.source = _drawn(source, tuning.validation_source, generator)
        self.sigma, self.team = sigma, level.team

    def __call__(self, collection: Collection) -> float:
        judged = Collection.of(
            *(g if isinstance(g.source, Gaussian) else replace(g, source=self.source) for g in collection.groups)
        )
        error = 0.0
        for z, target in zip(self.z.split(64), self.target.split(64)):
            error += (judged.denoise(z, self.sigma, team=self.team) - target).square().sum().item()
        return error / self.target.numel()


def _joined(parts: list[Tensor]) -> Tensor:
    """Vectors of several groups as those of one, per channel where one of them is."""
    channels = max(part.shape[1] for part in parts)
    return torch.cat([part.expand(-1, channels, -1, -1) for part in parts])


def _stale(level: Level, every: int) -> bool:
    return level.step - max(level.best_step, 0) >= level.tuning.patience * every and level.step > 0


def _drawn(source: Source, count: int | None, generator: torch.Generator) -> Source:
    """A Monte-Carlo source: images with weight, drawn without replacement (App. C.3)."""
    if count is None:
        return source
    weights = source.log_weights
    weighty = torch.arange(len(source)) if weights is None else (weights > -torch.inf).nonzero()[:, 0]
    if len(weighty) <= count:
        return source
    return source.subset(weighty[torch.randperm(len(weighty), generator=generator)[:count]])


def _generator(seed: int, sigma: float, step: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed} {sigma!r} {step}".encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))
