"""What tasks will cost on this machine: operations counted by the engine's plans, times its measured costs.

Networks are timed for a moment, since their costs are nobody's but theirs. What earlier results of the same kind really
took corrects the rest (`reproduce.predicted`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fpmc import presets
from fpmc.augmentation import MOVES
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Response, Responses, SameAsQ, one_hot
from fpmc.engine import Call, cost
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.learn.places import COARSE
from fpmc.methods.multiscale import multiscale
from fpmc.methods.schedules import resolve
from fpmc.methods.table1 import nearest
from fpmc.study.build import build
from fpmc.study.graph import Work
from fpmc.study.lab import Lab
from fpmc.study.methods import MOVED, MULTISCALE, NETWORKS, Method

PLANNED = ("optimal", "ls", "els", "pspc_square")       # their plan needs no covariance and no network
TIMED = ("network", "reference", "gradient")            # evaluations of networks, and of one's gradient
BATCH = 8                                               # noisy images that are planned and timed together
PASSES = {"q": 4.2, "r": 2.9, "qr": 6.7}                # of templates over the source, by what is learned, as measured
ALIKE = 0.25                                            # of that, where all estimators begin alike
WINDOW = 50                                             # entries that templates ask for beside those of q
GROWN = (3, 100)                                        # q that is learned has so many times its entries, and so many
MOMENT = 0.1                                            # seconds that a measurement takes at least
_planned: WeakKeyDictionary[Lab, dict[tuple[Method, float], dict[str, float]]] = WeakKeyDictionary()     # `per_image`


def samples(lab: Lab, method: Method, seeds: int) -> Work:
    """Heun: every level twice, but for the first and the last."""
    return calls(lab, method, [*lab.grid, *lab.grid[1:]], seeds)


def calls(lab: Lab, method: Method, sigmas: Iterable[float], count: int) -> Work:
    """`count` noisy images at each of these levels."""
    amounts: dict[str, float] = {}
    for sigma in sigmas:
        _add(amounts, per_image(lab, method, sigma), count)
    return Work(amounts, _memory(len(lab.images), lab.images.shape, method))


def asking(lab: Lab, count: float) -> Work:
    """Evaluations of the network, beside which those of the reference are not counted."""
    return Work({"network": float(count)}, 64 * 2**20)


def synthetic(lab: Lab, count: int) -> Work:
    """Samples of the network."""
    return asking(lab, count * (2 * lab.steps - 1))


def maps(lab: Lab) -> Work:
    """A gradient for every output value and draw."""
    return Work({"gradient": float(lab.scale.draws * lab.dimension)}, 64 * 2**20)


def groups(lab: Lab, sigma: float, count: int, moved: bool) -> Work:
    """Every group of the multi-scale collection, each answering for itself."""
    method = MOVED if moved else MULTISCALE
    return calls(lab, method, [sigma], count)


def tuning(lab: Lab, method: Method, sigma: float) -> Work:
    """Steps and validations of one level: sums over the support where zeros stay 0, or matrix products."""
    settings = lab.scale.tuning
    if settings.recipe == "templates":
        return _templates(lab, method, _alike(lab, replace(method, soft="", schedule="", augment=None), sigma))
    like = _alike(lab, method, sigma)
    images, judged = (min(each or len(lab.images), len(lab.images))
                      for each in (settings.monte_carlo, settings.validation_source))
    (group,) = like.groups
    channels, sparse = lab.images.shape[0], settings.floor_q == 0 and settings.floor_r == 0
    entries = group.q.entries if sparse else len(group) * group.q.channels * lab.side**2
    kind, steps = "tile.entry" if sparse else "product", settings.steps * settings.batch
    amounts = {kind: (3.0 + channels) * entries * images * steps, "network": float(steps + settings.validation)}
    validations = 1 + settings.steps // (settings.validate_every or max(1, len(lab.images) // settings.batch))
    _add(amounts, per_image(lab, method, sigma), validations * settings.validation * judged / len(lab.images))
    return Work(amounts, settings.memory + 24.0 * len(group) * group.q.channels * lab.side**2)


def _templates(lab: Lab, method: Method, like: Collection) -> Work:
    """R twice and Q in between: some passes over the source for each noisy image, with windows of q and r."""
    settings, (group, *_) = lab.scale.tuning, like.groups
    asked = settings.pool + settings.validation
    whole = len(group) == 1                             # learned as one for each block
    rows = math.ceil(lab.side / COARSE) ** 2 if whole else len(group)
    entries = rows * (group.q.entries / len(group) + WINDOW * group.q.channels)
    passes = PASSES[method.soft] * (ALIKE if whole else 1)
    images = len(lab.images) * (1 + (method.amount if method.augment else 0))
    amounts = {"tile.entry": passes * entries * images * asked, "network": float(asked)}
    return Work(amounts, 4.0 * images * (lab.dimension + torch.get_num_threads() * min(rows, 1024)))


def per_image(lab: Lab, method: Method, sigma: float) -> dict[str, float]:
    """Operations of one denoiser call by kind, as `cost` has them, or evaluations of a network."""
    if method.preset in NETWORKS:
        return {method.preset: 1.0}
    if method.preset == "wiener":
        return {"product64": 2.0 * lab.dimension**2}
    known, more = _planned.setdefault(lab, {}), 1.0
    if method.preset != "multiscale":
        more += method.amount if method.augment else 0
        method = replace(method, augment=None)
    method = replace(method, schedule="", target=None)  # a calibrated schedule is not known yet
    key = (Method.of(method.settings()), sigma)
    if key not in known:
        known[key] = {}
        for step in _collection(lab, method, sigma).plan(Call(sigma, BATCH)).steps:
            _add(known[key], step.counts, 1.0)
    return {kind: more * amount for kind, amount in known[key].items()}


def _collection(lab: Lab, method: Method, sigma: float) -> Collection:
    """The collection of a method, or one that costs as much."""
    if method.preset == "multiscale":
        moved = method.augment == "moved"
        squares = lab.recall(
            ("plans of squares", moved), lambda: multiscale(lab.images, gaussian=False, moved=moved)
        )
        return squares.at(sigma)
    if method.preset in PLANNED and not method.soft:
        denoiser = build(lab, method, {})
        assert isinstance(denoiser, FPMC)
        return denoiser.at(sigma)
    return _alike(lab, method, sigma)


def _add(amounts: dict[str, float], others: Mapping[str, float], times: float) -> None:
    for kind, amount in others.items():
        amounts[kind] = amounts.get(kind, 0.0) + times * amount


def _alike(lab: Lab, method: Method, sigma: float) -> Collection:
    """A collection that costs as much.

    PSPC-Flex has its masks if there are maps; other masks are about as large as PSPC-Square's patches. Soft precisions
    are squares of as many entries.
    """
    binary = replace(method, soft="", augment=None)
    sizes = _sizes(lab.dataset, lab.images.shape)
    patch = int(sizes[nearest(sizes, sigma)])
    if method.preset == "pspc_flex" and lab.maps is not None:
        denoiser = build(lab, binary, {})
        assert isinstance(denoiser, FPMC)
        masks = denoiser.at(sigma)
        if not method.soft or len(masks.groups[0]) == 1:
            return masks
        patch = math.isqrt(round(masks.groups[0].q.entries / len(masks.groups[0])))
    soft, tuning = method.soft if patch < lab.side else "", lab.scale.tuning
    sparse = tuning.recipe == "templates" or tuning.floor_q == 0               # q and r have zeros when learned
    return _masks(lab.images, patch, method.preset == "lukoianov", soft, sparse)


@lru_cache(maxsize=64)
def _masks(images: ImageSet, patch: int, per_channel: bool, soft: str, sparse: bool) -> Collection:
    channels, height, width = images.shape
    if patch >= min(height, width) and not per_channel:
        q: Precision = Full(height, width)
        return Collection(q, SameAsQ(q), images)

    def squares(size: int) -> Tensor:
        dense = Squares(min(size, height, width) // 2 * 2 + 1, height, width).dense() > 0
        return dense.repeat(channels, channels, 1, 1) if per_channel else dense

    values: Tensor = squares(patch)
    if "q" in soft:
        times, more = GROWN
        values = squares(math.isqrt(times * patch**2 + more)) * 0.9 + (0 if sparse else 1e-3)
    q = Precisions(values)
    if per_channel:
        r: Response = one_hot(*images.shape)
    elif soft:
        r = Responses(squares(patch) * (0.8 if "r" in soft else 1.0))
    else:
        r = SameAsQ(q)
    return Collection(q, r, images)


@lru_cache
def _sizes(dataset: str | None, shape: tuple[int, int, int]) -> dict[float, float]:
    return resolve(dataset, "pspc_square", shape)


def _memory(count: int, shape: tuple[int, int, int], method: Method) -> float:
    dimension = math.prod(shape)
    images = 2.0 * count * dimension                    # as they are, and laid out for the kernels
    if method.augment == "moved":
        images += len(MOVES) * count * dimension
    covariance = 24.0 * dimension**2 if method.preset in ("wiener", "lukoianov", "multiscale") else 0.0
    vectors = {"pspc_flex": (shape[1] * shape[2]) ** 2, "lukoianov": dimension**2}.get(method.preset, 0)
    return images + covariance + vectors * (8.0 if method.soft else 1.0) + 64 * 2**20


# Sampling by many ranks, on paper


class Link(NamedTuple):
    """What is between ranks."""

    bandwidth: float = 1.25e9                           # bytes a second each way: 10 Gbit/s
    latency: float = 50e-6                              # seconds of a message


class Share(NamedTuple):
    """What sampling takes of each rank, predicted."""

    images: int                                         # of the source
    seeds: int
    seconds: float
    memory: float                                       # bytes
    traffic: float                                      # bytes that a call brings together, at most
    collectives: int                                    # of a call, at most


def over_ranks(
    method: Method,
    shape: tuple[int, int, int],
    images: int,
    sigmas: Sequence[float],                            # of all evaluations of a sample
    seeds: int,
    mesh: tuple[int, int] = (1, 1),                     # ranks that split the source, times ranks that split the seeds
    *,
    batch: int = 16,
    threads: int = 1,                                   # of a rank
    link: Link = Link(),  # noqa: B008
) -> Share:
    """Sampling by a mesh of ranks: plans of the source's stretches, and two sums over the ranks for every call.

    The first brings top and mass together, (batch, estimators) in float64; the second what is reduced,
    (batch, C, H, W). Where each output has one estimator both go in one. Each is an all-reduce in a ring.
    """
    by_source, by_seeds = mesh
    own = math.ceil(seeds / by_seeds)
    together, calls = min(batch, own), math.ceil(own / batch)
    stretch = math.ceil(images / by_source)
    part = ImageSet(torch.empty(stretch, *shape, dtype=torch.uint8, device="meta"))    # plans look at sizes only
    at = _on_paper(method, part)
    spent = {sigma: _call(at(sigma), sigma, together, threads, shape) for sigma in set(sigmas)}
    wait = {
        sigma: 2 * (by_source - 1) / by_source * bytes_ / link.bandwidth + sums * link.latency * math.log2(by_source)
        for sigma, (_, bytes_, sums, _) in spent.items()
    }
    return Share(
        stretch, own, sum(own * spent[sigma][0] + calls * wait[sigma] for sigma in sigmas),
        _memory(stretch, shape, method) + max(each[3] for each in spent.values()),
        max(each[1] for each in spent.values()) if by_source > 1 else 0.0,
        max(each[2] for each in spent.values()) if by_source > 1 else 0,
    )


def _on_paper(method: Method, images: ImageSet) -> Callable[[float], Collection]:
    """The collections of a method, or such as cost as much."""
    if method.preset in PLANNED:
        return getattr(presets, method.preset)(images, **dict(method.options)).at
    if method.preset not in ("pspc_flex", "lukoianov"):
        raise InputError(f"{method.preset} has no plan on paper; there are {', '.join(PLANNED)}, pspc_flex, lukoianov")
    sizes = _sizes(None, images.shape)
    return lambda sigma: _masks(images, int(sizes[nearest(sizes, sigma)]), method.preset == "lukoianov", "", True)


def _call(
    collection: Collection, sigma: float, batch: int, threads: int, shape: tuple[int, int, int]
) -> tuple[float, float, int, float]:
    """Of a call: seconds per noisy image, bytes and number of its sums over ranks, bytes of working arrays."""
    plan = collection.plan(Call(sigma, batch))
    engine = sum(cost.seconds(step.counts) for step in plan.steps) * cost.machine_factor() / threads
    state = sum(16.0 * batch * step.estimators for step in plan.steps)
    sums = 2 if any(step.respond == "mixed" for step in plan.steps) else 1
    return engine, state + 4.0 * batch * math.prod(shape), sums, plan.memory


def seconds(work: Work, timed: dict[str, float]) -> float:
    """On as many threads as torch has; `timed` are the seconds of what networks do."""
    counts = {kind: amount for kind, amount in work.amounts.items() if kind not in TIMED}
    engine = cost.seconds(counts) * cost.machine_factor() / torch.get_num_threads() if counts else 0.0
    return engine + sum(timed[kind] * amount for kind, amount in work.amounts.items() if kind in TIMED)


def measure(lab: Lab, kinds: Iterable[str]) -> dict[str, float]:
    """Seconds of each thing that networks do, measured for a moment.

    On a CPU by one thread in processor time: threads that wait for each other on a busy machine take a hundred times
    as long.
    """
    threads = torch.get_num_threads()
    clock, sharing = (time.process_time, threads) if lab.device == "cpu" else (time.perf_counter, 1)
    torch.set_num_threads(1)
    try:
        return {kind: _seconds(lab, kind, clock) / sharing for kind in kinds if kind in TIMED}
    finally:
        torch.set_num_threads(threads)


def _seconds(lab: Lab, kind: str, clock: Callable[[], float]) -> float:
    z = torch.randn(BATCH, *lab.images.shape).requires_grad_(kind == "gradient")
    network = lab.reference if kind == "reference" else lab.network

    def evaluate() -> None:
        with torch.set_grad_enabled(z.requires_grad):
            answer = network(z, 1.0)
            if z.requires_grad:
                torch.autograd.grad(answer.sum(), z)

    return _best(evaluate, clock) / BATCH


def _best(work: Callable[[], object], clock: Callable[[], float]) -> float:
    work()                                              # whatever happens only once
    best, start = torch.inf, time.perf_counter()
    while time.perf_counter() < start + MOMENT:         # the best, since other work only ever slows it
        began = clock()
        work()
        best = min(best, clock() - began)
    return best
