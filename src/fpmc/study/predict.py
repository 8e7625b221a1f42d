"""What tasks will cost on this machine: counted work, divided by measured speed. Good to a factor of two or so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import torch

from fpmc.augmentation import MOVES
from fpmc.core.collection import FPMC, Collection
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import SameAsQ, pixel
from fpmc.core.sources import Source, Translations
from fpmc.engine import Task as Call
from fpmc.methods.multiscale import multiscale
from fpmc.methods.schedules import resolve
from fpmc.methods.table1 import nearest
from fpmc.study.build import build
from fpmc.study.graph import Work
from fpmc.study.lab import Lab
from fpmc.study.methods import MOVED, MULTISCALE, NETWORKS, Method

PLANNED = ("optimal", "ls", "els", "pspc_square")       # their plan needs no covariance and no network
MIXING = 0.6                                            # time of squares of several sizes, in box sums of as much work
SHORT = 0.1                                             # of all dimensions: entries of a large mask as differences
LEFT = 0.5                                              # share of a multi-scale collection's work that a fit leaves
GRADIENT = 1.2                                          # evaluations a gradient of the network is worth, in batches
PRODUCTS = 5                                            # products, or sums, of a fine-tuning step
TRIED = {"shifts": 64}                                  # images on which speed is measured, 2048 but for ELS
BATCH = 8                                               # and noisy images
MOMENT = 0.1                                            # seconds that a measurement takes at least


def samples(lab: Lab, method: Method, seeds: int) -> Work:
    """Heun: every level twice, but for the first and the last."""
    return calls(lab, method, [*lab.grid, *lab.grid[1:]], seeds)


def calls(lab: Lab, method: Method, sigmas: Iterable[float], count: int) -> Work:
    """`count` noisy images at each of these levels."""
    amounts: dict[str, float] = {}
    for sigma in sigmas:
        for kind, amount in per_image(lab, method, sigma).items():
            amounts[kind] = amounts.get(kind, 0.0) + count * amount
    return Work(amounts, _memory(lab, method))


def asking(lab: Lab, count: float) -> Work:
    """Evaluations of the network, beside which those of the reference are not counted."""
    return Work({"network": float(count)}, 64 * 2**20)


def synthetic(lab: Lab, count: int) -> Work:
    """Samples of the network."""
    return asking(lab, count * (2 * lab.steps - 1))


def maps(lab: Lab) -> Work:
    """A gradient for every output value and draw."""
    return asking(lab, lab.scale.draws * lab.dimension * GRADIENT)


def groups(lab: Lab, sigma: float, count: int, moved: bool) -> Work:
    """Every group of the multi-scale collection, each answering for itself."""
    amounts = {kind: count * amount for kind, amount in _multiscale(lab, sigma, moved).items()}
    return Work(amounts, _memory(lab, MOVED if moved else MULTISCALE))


def tuning(lab: Lab, method: Method, sigma: float) -> Work:
    """Steps and validations of one level: matrix products, or sums over the support where zeros stay 0."""
    settings, pixels, patch = lab.scale.tuning, lab.side**2, _patch(lab, sigma)
    length = span = lab.dimension if method.preset == "lukoianov" else pixels
    if patch == lab.side and method.preset != "lukoianov":
        length = 1                                      # one estimator sees the whole image
    sparse = settings.floor_q == 0 and settings.floor_r == 0
    row = min(patch**2, pixels) * (span // pixels) if sparse else span
    images, judged = (min(each or len(lab.images), len(lab.images))
                      for each in (settings.monte_carlo, settings.validation_source))
    validations = 1 + settings.steps // (settings.validate_every or max(1, len(lab.images) // settings.batch))
    stepped = settings.steps * settings.batch * images
    sums = length * row * (PRODUCTS * stepped + 3 * validations * settings.validation * judged)
    evaluations = settings.steps * settings.batch + settings.validation
    work = {"rows" if sparse else "matrix": float(sums), "network": float(evaluations)}
    return Work(work, settings.memory + 24.0 * length * span)


def per_image(lab: Lab, method: Method, sigma: float) -> dict[str, float]:
    """The kinds of work of one denoiser call and their amounts: multiply-adds, or network evaluations."""
    method = replace(method, schedule="")               # a calibrated one is not known yet
    if method.preset in NETWORKS:
        return {method.preset: 1.0}
    if method.preset == "multiscale":
        amounts = _multiscale(lab, sigma, method.augment == "moved")
        return {kind: LEFT * amount for kind, amount in amounts.items()}
    if method.preset in PLANNED and not method.soft:
        denoiser = build(lab, method, {})
        assert isinstance(denoiser, FPMC)
        step = denoiser.at(sigma).plan(Call(sigma, BATCH)).steps[0]
        return {step.kernel: step.work}
    images, pixels = len(lab.images) * (1 + (method.amount if method.augment else 0)), lab.side**2
    patch = _patch(lab, sigma)
    if method.preset == "wiener":
        return {"affine": 2.0 * lab.dimension**2}
    if method.preset == "lukoianov":
        length = span = lab.dimension
        entries = min(patch**2, pixels) * lab.images.shape[0]
        if not method.soft:
            entries = min(entries, round(SHORT * span))
    else:
        if patch == lab.side:
            return {"full": 2.0 * lab.dimension * images}
        length, span, entries = pixels, pixels, patch**2
    passes = 1 if method.preset == "lukoianov" and "r" not in method.soft else 3   # posteriors twice, and responses
    if method.soft and lab.scale.tuning.floor_q != 0:
        return {"matrix": float(passes) * images * length * span}
    return {"rows": float(passes) * images * length * entries}


def _multiscale(lab: Lab, sigma: float, moved: bool) -> dict[str, float]:
    """Work of all groups but the Wiener filter, by kernel."""
    key = ("plans of squares", moved)
    collections = lab.recall(key, lambda: multiscale(lab.images, gaussian=False, moved=moved))
    found: dict[str, float] = {}
    for step in collections.at(sigma).plan(Call(sigma, BATCH)).steps:
        found[step.kernel] = found.get(step.kernel, 0.0) + step.work * (MIXING if step.kernel == "boxes" else 1)
    return found


@lru_cache
def _sizes(dataset: str | None, shape: tuple[int, int, int]) -> dict[float, float]:
    return resolve(dataset, "pspc_square", shape)


def _patch(lab: Lab, sigma: float) -> int:
    """The patch size of PSPC-Square, which masks and soft precisions are about as large as."""
    sizes = _sizes(lab.dataset, lab.images.shape)
    return int(sizes[nearest(sizes, sigma)])


def _memory(lab: Lab, method: Method) -> float:
    images = 2.0 * len(lab.images) * lab.dimension      # as they are, and laid out for the kernels
    if method.augment == "moved":
        images += len(MOVES) * len(lab.images) * lab.dimension
    covariance = 24.0 * lab.dimension**2 if method.preset in ("wiener", "lukoianov", "multiscale") else 0.0
    vectors = {"pspc_flex": lab.side**4, "lukoianov": lab.dimension**2}.get(method.preset, 0)
    return images + covariance + vectors * (8.0 if method.soft else 1.0) + 64 * 2**20


def seconds(work: Work, speed: dict[str, float]) -> float:
    return sum(amount / speed[kind] for kind, amount in work.amounts.items())


def measure(lab: Lab, kinds: Iterable[str]) -> dict[str, float]:
    """Work of each kind per second, measured for a moment on a few of the images."""
    return {kind: _SPEEDS[kind](lab) for kind in kinds}


def _network(name: str) -> Callable[[Lab], float]:
    def speed(lab: Lab) -> float:
        z, network = torch.randn(BATCH, *lab.images.shape), getattr(lab, name)
        with torch.no_grad():
            return BATCH / _best(lambda: network(z, 1.0))

    return speed


def _product(lab: Lab) -> float:
    a = torch.rand(1024, 1024)
    return 1024**3 / _best(lambda: a @ a)


def _kernel(kind: str) -> Callable[[Lab], float]:
    def speed(lab: Lab) -> float:
        source = Source(lab.images.subset(slice(TRIED.get(kind, 2048))))
        _, height, width = source.shape
        size = max(3, height // 4 // 2 * 2 + 1)
        q: Precision = Full(height, width) if kind == "full" else Squares(size, height, width)
        if kind == "rows":
            q = Precisions(q.dense() > 0)
        if kind in ("shifts", "boxes"):
            members = Translations(source, size) if kind == "shifts" else source
            collection = Collection(q, pixel(height, width), members)
        else:
            collection = Collection(q, SameAsQ(q), source)
        z = torch.randn(BATCH, *source.shape)
        work = collection.plan(Call(1.0, BATCH)).steps[0].work
        if kind == "rows":                              # counted as `per_image` does
            work = 3.0 * len(source) * q.entries
        return BATCH * work / _best(lambda: collection.denoise(z, 1.0))

    return speed


def _best(work: Callable[[], object]) -> float:
    work()                                              # compile, lay out
    best, start = torch.inf, time.perf_counter()
    while time.perf_counter() < start + MOMENT:         # the best, since other work only ever slows it
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


_SPEEDS: dict[str, Callable[[Lab], float]] = {
    "network": _network("network"),
    "reference": _network("reference"),
    "matrix": _product,
    "affine": _product,
    **{kind: _kernel(kind) for kind in ("full", "boxes", "rows", "shifts")},
}
