"""What the ranks of a world are asked; the same functions run in one process, and their answers are compared."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fpmc import presets
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full, Precisions, Squares
from fpmc.core.response import Partition, Responses, SameAsQ, pixel
from fpmc.core.sources import Source, Translations
from fpmc.engine import Mass, Settings
from fpmc.engine.gradients import Fixed, loss_and_gradients
from fpmc.engine.ranks import Ranks
from fpmc.engine.simd import gradients as sparse
from fpmc.images import ImageSet
from fpmc.learn.finetune import Level, Tuning, train_level
from fpmc.learn.fit import fit_level
from fpmc.sampling import sample

SIGMAS = (0.002, 0.06, 0.3, 1.1, 5.3, 80.0)
CHANNELS, HEIGHT, WIDTH = SHAPE = 3, 6, 5


class Uneven(Ranks):
    """The first rank has nothing, the second nearly everything."""

    def stretches(self, count: int) -> list[tuple[int, int]]:
        ends = [0, 0, *(count - min(count, later) for later in range(self.size - 2, 0, -1)), count]
        return [(ends[self.rank], ends[self.rank + 1])] if self.size > 1 else [(0, count)]


def images(count: int = 23, seed: int = 0) -> ImageSet:
    random = torch.Generator().manual_seed(seed)
    common = 50 * torch.randn(count, 1, 1, 1, generator=random)
    values = 127.5 + common + 40 * torch.randn(count, *SHAPE, generator=random)
    return ImageSet(values.round().clip(0, 255).byte())


def soft(length: int, channels: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(length, channels, HEIGHT, WIDTH, generator=random).exp()
    return values * (torch.rand(values.shape, generator=random) < 0.7)


def mixed(data: ImageSet) -> FPMC:
    """Groups of every structure and source: soft, owned, whole, translated, weighted, in a union, Gaussian."""
    source, more = Source(data), images(7, 1)
    union = source | Source(more, torch.linspace(-1, 1, len(more)))
    squares, q = Squares(3, HEIGHT, WIDTH), Precisions(soft(11, CHANNELS, 2))
    owner = torch.randint(11, (1, HEIGHT, WIDTH), generator=torch.Generator().manual_seed(3))
    around = Squares(2, HEIGHT, WIDTH, inside=True, around=0.3)
    weight = torch.linspace(0.5, 2, CHANNELS)[:, None, None]
    return FPMC(Collection.of(
        Group(q, Responses(soft(11, 1, 4) + 0.01), union),
        Group(q, Partition(owner, 11), source, weight),
        Group(Precisions(soft(4, 1, 5)), Responses(soft(4, 1, 6)), source),
        Group(around, SameAsQ(around.patch), union, weight[:1]),
        Group(Full(HEIGHT, WIDTH, 0.25), SameAsQ(Full(HEIGHT, WIDTH)), source),
        Group(squares, pixel(HEIGHT, WIDTH), Translations(source, 3)),
        Group(Full(HEIGHT, WIDTH), SameAsQ(Full(HEIGHT, WIDTH)), fit_gaussian(source)),
    ))


DENOISERS = {
    "optimal": presets.optimal,
    "wiener": presets.wiener,
    "ls": lambda data: presets.ls(data, schedule=3),
    "els": lambda data: presets.els(data, schedule=3),
    "pspc_square": lambda data: presets.pspc_square(data, schedule=3),
    "pspc_flex": lambda data: presets.pspc_flex(data, maps="wiener", schedule=0.7),
    "lukoianov": lambda data: presets.lukoianov(data, tau=0.05),
    "multiscale": lambda data: presets.multiscale(data, sizes=[2, 3]),
    "copies": lambda data: presets.multiscale(data, sizes=[3], moved=True),
    "mixed": mixed,
    "left out": lambda data: mixed(data).without([0, 5, 6]),
    "in torch": lambda data: mixed(data).using(backend="torch", chunk=4),
    "in small batches": lambda data: FPMC(mixed(data).at(1.0)).using(memory=1 << 20),
    "few images": lambda data: presets.pspc_square(data.subset(slice(3)), schedule=2),
    "one image": lambda data: mixed(data.subset(slice(1))),
}


def denoiser(name: str, cut: str | None) -> FPMC:
    """cut: even, uneven, or None for one process."""
    made = DENOISERS[name](images())
    if cut is None:
        return made
    return made.sharded() if cut == "even" else replace(made, team=Uneven())


def noisy(sigma: float, count: int = 3) -> Tensor:
    random = torch.Generator().manual_seed(7)
    return images().scaled(slice(count)) + sigma * torch.randn(count, *SHAPE, generator=random)


def answers(name: str, cut: str | None) -> dict[float, Tensor]:
    made = denoiser(name, cut)
    return {sigma: made(noisy(sigma), sigma) for sigma in SIGMAS}


def attributions(name: str, cut: str | None) -> dict[str, Tensor]:
    found, made = {}, denoiser(name, cut)
    for sigma in (0.06, 1.1, 80.0):
        for top in (4, 1000):
            one = made.attribute(noisy(sigma), sigma, top, pixel=(2, 3) if top == 4 else None)
            for part in ("weights", "effective", "gaussian", "maps", "answers"):
                found[f"{part} {sigma} {top}"] = getattr(one, part)
            count = len(one.images)                     # whose share it is; of those without, the order is nobody's
            found[f"shares {sigma} {top}"] = torch.zeros(len(one.index), count).scatter(1, one.index, one.weights)
    return found


def masses(cut: str | None) -> list[Tensor]:
    made = denoiser("pspc_square", cut)
    return list(made.at(1.1).reduce(Mass(), noisy(1.1).double(), 1.1, Settings(), made.team))


def gradients(cut: str | None) -> dict[str, Tensor]:
    """Dense and sparse, in parts and whole, in both number formats."""
    data, found = images(), {}
    team = denoiser("optimal", cut).team
    patches = Squares(2, HEIGHT, WIDTH, inside=True).dense()
    for sigma in (0.1, 1.1, 80.0):
        z, target = noisy(sigma), data.scaled(slice(3, 6))
        fixed = Fixed(0.3 * target, torch.full((1, HEIGHT, WIDTH), 0.3))
        for source in (Source(data).without([0, 1]), Source(data) | images(2, 1)):
            q, r, key = soft(9, CHANNELS, 8) + 0.01, soft(9, 1, 9) + 0.01, f"{sigma} {len(source)}"
            for memory in (1 << 28, 20_000):
                how = {"fixed": fixed, "memory": memory, "team": team}
                found[f"dense {key} {memory}"] = loss_and_gradients(z, target, sigma, q, r, source, **how)
                z64, target64, q64, r64 = (each.double() for each in (z, target, q, r))
                found[f"double {key} {memory}"] = loss_and_gradients(z64, target64, sigma, q64, r64, source, **how)
            found[f"sparse {key}"] = sparse.loss_and_gradients(
                z, target, sigma, patches, patches, source, fixed, ("q", "r"), team
            )
    return {f"{key} {part}": torch.as_tensor(getattr(g, part)) for key, g in found.items() for part in g._fields}


def tuned(cut: str | None) -> dict[str, Tensor]:
    """A few steps of fine-tuning, with their validations."""
    made, data = denoiser("multiscale", cut), images()
    tuning = Tuning(steps=4, batch=3, validate_every=2, validation=5, monte_carlo=15, memory=1 << 24)
    level = replace(Level.start(made.at(1.1), 1.1, tuning), team=made.team)
    list(train_level(level, lambda z, sigma: z / (1 + sigma**2), data, images(9, 4)))
    return {"q": level.log_q.exp(), "r": level.log_r.exp(), "history": torch.tensor(level.history).nan_to_num()}


def fitted(cut: str | None) -> dict[str, Tensor]:
    made = denoiser("multiscale", cut)
    found = fit_level(made.at(1.1), 1.1, "clean", images(), count=16, team=made.team)
    return {"weights": found.weights, "error": torch.tensor(found.error)}


def samples(seeds: tuple[int, ...], cut: str | None) -> Tensor:
    return sample(denoiser("pspc_square", cut), seeds=seeds, steps=6).images


def bytes_of_a_call(name: str) -> list[int]:
    """Messages and bytes of a first call, which agrees on what it is, and of a second."""
    made, z = denoiser(name, "even"), noisy(1.1)
    found: list[int] = []
    for _ in range(2):
        before = replace(made.team.traffic)  # pyright: ignore
        made(z, 1.1)
        found += [made.team.traffic.messages - before.messages, made.team.traffic.received - before.received]  # pyright: ignore
    return found


def misuse(kind: str) -> str:
    """What is said where ranks are not asked alike, or for gradients."""
    made, z = denoiser("mixed", "even"), noisy(1.1)
    rank = made.team.rank  # pyright: ignore
    try:
        if kind == "another z" and rank == 1:
            made(z + 0.1, 1.1)
        elif kind == "another sigma" and rank == 1:
            made(z, 1.2)
        elif kind == "another denoiser" and rank == 1:
            denoiser("left out", None).using(backend="torch").sharded()(z, 1.1)
        elif kind == "autograd":
            made(z.requires_grad_(), 1.1)
        else:
            made(z, 1.1)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
