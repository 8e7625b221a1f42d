"""Response weights in closed form: how much say each group of a collection has, by least squares (beyond the paper).

At one noise level the groups answer D_g(z); weights w ≥ 0 with Σ w = 1 are found that bring Σ w_g D_g nearest to the
target, a network's answer or the clean image. Only the products ⟨D_g, D_h⟩ and ⟨D_g, target⟩ are kept, so one pass over
any number of noisy images is enough. Weights per channel or per pixel are drawn towards the common ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor

from fpmc.augmentation import MOVES, TURNS, Augmented
from fpmc.core.collection import Collection
from fpmc.core.gaussian import Gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full, Squares
from fpmc.core.sources import Measure, Source
from fpmc.engine import Alone, Settings
from fpmc.errors import InputError
from fpmc.gate import check_device
from fpmc.images import ImageSet, check_images
from fpmc.process import Denoiser

Target = Denoiser | Literal["clean"]
Per = Literal["group", "channel", "pixel"]
RIDGES = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)             # times the mean of ⟨D_g, D_g⟩
FOLDS = 8                                               # of the cross-validation
FEW = 64                                                # a batch is at most this part of the images
NONE = 1e-3                                             # a group with less say than this everywhere is left out
MOST = 100                                              # iterations of least squares, for each group


@dataclass(frozen=True)
class Fit:
    """The weights of one noise level and what they are worth, judged on noisy images they were not fitted on."""

    sigma: float
    weights: Tensor                                     # float64 (K,), or (K, C, 1, 1) or (K, C, H, W)
    weights_se: Tensor                                  # (K,): jackknife over noisy images, of the common weights
    ridge: float                                        # chosen by cross-validation
    error: float                                        # mean squared error to the target, cross-validated
    error_se: float
    singles: Tensor                                     # (K,): error of each group alone
    gain: float                                         # least of them less `error`
    gain_se: float                                      # over noisy images, paired
    free_sum: float                                     # Σ w where it need not be 1
    free_error: float                                   # and its error: what an output gain would bring
    count: int                                          # noisy images


@dataclass
class Moments:
    """⟨D_g, D_h⟩, ⟨D_g, t⟩ and ⟨t, t⟩: by noisy image over all entries, and by fold for each channel or pixel."""

    per: Per
    by_image: Tensor                                    # (n, K + 1, K + 1), the target last
    by_place: Tensor | None                             # (folds, places, K + 1, K + 1)

    @classmethod
    def empty(cls, per: Per) -> Moments:
        return cls(per, torch.empty(0, dtype=torch.float64), None)

    def add(self, answers: Sequence[Tensor], wanted: Tensor) -> None:
        """Some more noisy images: what each group answers, and what is wanted of them."""
        table = torch.stack([*answers, wanted]).double()                       # (K + 1, B, C, H, W)
        _, count, channels, height, width = table.shape
        products = torch.einsum("gbchw,kbchw->bgk", table, table) / (channels * height * width)
        if self.per != "group":
            here = torch.einsum("gbchw,kbchw->bchwgk", table, table)
            places = (here.sum((2, 3)) / (height * width) if self.per == "channel" else here.flatten(1, 3)).float()
            if self.by_place is None:
                self.by_place = torch.zeros(FOLDS, *places.shape[1:])
            self.by_place.index_add_(0, (len(self.by_image) + torch.arange(count)) % FOLDS, places)
        self.by_image = torch.cat([self.by_image.view(-1, *products.shape[1:]), products])


def weigh(collection: Collection, weights: Tensor) -> Collection:
    """The collection with Σ r = w_g for the estimators of group g; groups without say are left out.

    weights: (K,), (K, C, 1, 1) or (K, C, H, W).
    """
    weights = weights.view(len(weights), *(weights.shape[1:] or (1, 1, 1)))
    kept = [
        group.weighted(weight)
        for group, weight in zip(collection.groups, weights, strict=True)
        if weight.max() > NONE
    ]
    return Collection.of(*kept)


def fit_level(collection: Collection, sigma: float, target: Target, images: ImageSet, **options: Any) -> Fit:
    """The weights of the groups of one collection, by least squares; options are those of `fit_targets`."""
    return fit_targets(collection, sigma, [target], images, **options)[0]


def fit_targets(
    collection: Collection,
    sigma: float,
    targets: Sequence[Target],
    images: ImageSet,
    *,
    count: int = 512,
    per: Per = "group",
    seed: int = 0,
    batch: int = 32,
    settings: Settings | None = None,
    team: Alone | None = None,                          # who shares the source; None: nobody
    device: str | torch.device = "cpu",                 # where the groups and networks answer
) -> list[Fit]:
    """Weights for each of several targets over the same `count` noisy images; the groups are asked only once."""
    check_images(images), check_device(device)
    if per not in ("group", "channel", "pixel"):
        raise InputError(f"per {per!r} is unknown; use 'group', 'channel' or 'pixel'")
    if wrong := [target for target in targets if isinstance(target, str) and target != "clean"]:
        raise InputError(f"target {wrong[0]!r} is unknown; give a network or 'clean'")
    if count < 2 * FOLDS:
        raise InputError(f"count {count}: cross-validation needs at least {2 * FOLDS} noisy images")
    if images.shape != collection.shape:
        raise InputError(f"images of shape {images.shape} do not fit a collection of shape {collection.shape}")
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randperm(len(images), generator=generator)
    chosen = spread[torch.arange(count) % len(images)]
    batch = max(1, min(batch, len(images) // FEW))      # a whole batch is left out of the source
    moments = [Moments.empty(per) for _ in targets]
    for first in range(0, count, batch):
        index = chosen[first : first + batch]
        x = images.scaled(index)
        z = (x + sigma * torch.randn(x.shape, generator=generator)).to(device)
        with torch.no_grad():
            found = answers_of(collection, z, sigma, images.ids[index], settings, team)
            answers = [answer.cpu() for answer in found]
            for each, target in zip(moments, targets, strict=True):
                each.add(answers, x if isinstance(target, str) else target(z, sigma).cpu())
    return [_solve(each, sigma, collection.shape) for each in moments]


def answers_of(
    collection: Collection, z: Tensor, sigma: float, ids: Tensor, settings: Settings | None = None,
    team: Alone | None = None,
) -> list[Tensor]:
    """Each group's own answer to z, the images with these ids left out of its source."""
    left: dict[int, Source] = {}

    def without(source: Source) -> Source:              # groups go on sharing their source
        return left.setdefault(id(source), source.without(ids))

    apart = (replace(group, weight=None) for group in collection.groups)
    kept = (group if isinstance(group.source, Gaussian) else group.changed(without) for group in apart)
    return Collection.of(*kept).answers(z, sigma, settings, team)


def labels(collection: Collection) -> list[str]:
    """What the groups of a collection are called in tables."""
    masks = itertools.count(1)

    def label(group: Group) -> str:
        if isinstance(group.source, Gaussian):
            return "Wiener"
        if isinstance(group.q, Squares):
            outside = f" in {group.q.around:g}" if group.q.around else ""
            return f"{'square' if group.q.inside else 'LS'} {group.q.size}{outside}"
        if isinstance(group.q, Full):
            return "optimal" if group.q.value == 1 else f"T = {group.q.value**-0.5:.3g}"
        return f"masks {next(masks)}"

    return [label(group) + _copies(group.source) for group in collection.groups]


def _copies(source: Measure) -> str:
    """What a label says of copies in the source."""
    parts = source.parts if isinstance(source, Source) else ()
    kinds = [part.kind.name if isinstance(part, Augmented) else "" for part in parts]
    if any(kind in TURNS for kind in kinds):
        return " turned"
    if any(kind in MOVES for kind in kinds):
        return " moved alone" if all(kind in MOVES for kind in kinds) else " moved"
    return ""


def _solve(moments: Moments, sigma: float, shape: tuple[int, int, int]) -> Fit:
    per, each = moments.per, moments.by_image.numpy()
    count, groups = len(each), each.shape[1] - 1
    fold = np.arange(count) % FOLDS
    whole = each.mean(0)
    uniform = np.full(groups, 1 / groups)

    def common(table: np.ndarray, ridge: float, free: bool = False) -> np.ndarray:
        return least_squares(*_ridged(table, ridge, uniform), free=free)

    def judged(fit: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:         # (n,): error on images not fitted on
        errors = np.empty(count)
        for part in range(FOLDS):
            out = fold == part
            errors[out] = errors_of(each[out], fit(each[~out].mean(0)))
        return errors

    tried = {ridge: judged(lambda table, ridge=ridge: common(table, ridge)) for ridge in RIDGES}
    ridge = min(tried, key=lambda value: tried[value].mean())
    weights, errors = common(whole, ridge), tried[ridge]
    halves = np.stack([common(each[fold != part].mean(0), ridge) for part in range(FOLDS)])
    spread = np.sqrt((FOLDS - 1) * halves.var(0))       # delete-a-group jackknife
    placed = torch.from_numpy(weights)
    if moments.by_place is not None:
        placed, ridge, errors = _by_place(moments.by_place.double().numpy(), weights, errors, fold, per, shape)
    singles = np.stack([errors_of(each, row) for row in np.eye(groups)])         # (K, n)
    best = singles[singles.mean(1).argmin()]
    free = judged(lambda table: common(table, ridge if per == "group" else 0.0, free=True))
    return Fit(
        sigma, placed, torch.from_numpy(spread), ridge,
        float(errors.mean()), float(errors.std()) / math.sqrt(count),
        torch.from_numpy(singles.mean(1)),
        float((best - errors).mean()), float((best - errors).std()) / math.sqrt(count),
        float(common(whole, 0.0, free=True).sum()), float(free.mean()), count,
    )


def _by_place(
    by_fold: np.ndarray, common: np.ndarray, errors: np.ndarray, fold: np.ndarray, per: Per, shape: tuple[int, int, int]
) -> tuple[Tensor, float, np.ndarray]:
    """Weights for each channel or pixel, drawn towards the common ones as far as cross-validation likes it."""
    total, places = by_fold.sum(0), by_fold.shape[1]
    number = np.bincount(fold, minlength=FOLDS)
    scale = np.trace(total[:, :-1, :-1], axis1=1, axis2=2).mean() / len(common) / number.sum()

    def fit(table: np.ndarray, ridge: float) -> np.ndarray:                    # (places, K)
        drawn = ((table[p][:-1, :-1] + ridge * scale * np.eye(len(common)),
                  table[p][:-1, -1] + ridge * scale * common) for p in range(places))
        return np.stack([least_squares(a, b) for a, b in drawn])

    def error(ridge: float) -> np.ndarray:                                     # (folds,)
        found = []
        for part in range(FOLDS):
            rest = (total - by_fold[part]) / (number.sum() - number[part])
            w = np.concatenate([fit(rest, ridge), np.full((places, 1), -1.0)], axis=1)
            found.append(np.einsum("pk,pkl,pl->", w, by_fold[part], w) / places / number[part])
        return np.array(found)

    tried = {ridge: error(ridge) for ridge in (0.01, 0.1, 1.0, 10.0)}
    tried[math.inf] = np.array([errors[fold == part].mean() for part in range(FOLDS)])
    ridge = min(tried, key=lambda value: tried[value].mean())
    if math.isinf(ridge):
        rows = np.tile(common, (places, 1))
    else:
        rows = fit(total / number.sum(), ridge)
        errors = errors + (tried[ridge] - tried[math.inf])[fold]               # the change is known by fold
    size = (shape[0], 1, 1) if per == "channel" else shape
    return torch.from_numpy(rows.T.copy()).view(-1, *size), ridge, errors


def _ridged(table: np.ndarray, ridge: float, towards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    strength = ridge * np.trace(table[:-1, :-1]) / len(towards)
    return table[:-1, :-1] + strength * np.eye(len(towards)), table[:-1, -1] + strength * towards


def errors_of(tables: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """‖Σ w_g D_g − t‖² for each noisy image, (n,), from its products, (n, K + 1, K + 1)."""
    signed = np.append(weights, -1.0)
    return tables @ signed @ signed


def _root(a: np.ndarray) -> np.ndarray:
    """An upper triangular R with RᵀR = A, whose trace is its size, or the smallest multiple of 1 more that has one.

    Not by eigenvectors: for small matrices their routine wakes all threads, which on a busy machine takes a hundred
    times as long as the work.
    """
    for more in (0.0, 1e-12, 1e-9, 1e-6):
        try:
            return np.linalg.cholesky(a + more * np.eye(len(a))).T
        except np.linalg.LinAlgError:                   # rounding
            continue
    raise ValueError("the matrix of a least-squares problem is not positive semi-definite")


def least_squares(a: np.ndarray, b: np.ndarray, *, free: bool = False) -> np.ndarray:
    """min wᵀAw − 2bᵀw with w ≥ 0 and, unless `free`, Σ w = 1.

    With A = RᵀR and b = Rᵀy it is ‖Rw − y‖². Where Σ w = 1 that is ‖(R − y1ᵀ)w‖², which scales with w, so a row that
    asks for Σ w = 1, of whatever weight, decides the length of w and nothing else: it is divided by its sum.
    """
    scale = max(np.trace(a) / len(b), 1e-300)
    rows = _root(a / scale)
    wanted = solve_triangular(rows.T, b / scale, lower=True)
    if free:
        return nnls(rows, wanted, maxiter=MOST * len(b))[0]
    rows = np.vstack([rows - wanted[:, None], np.ones(len(b))])
    weights = nnls(rows, np.append(np.zeros(len(b)), 1.0), maxiter=MOST * len(b))[0]
    return weights / weights.sum()
