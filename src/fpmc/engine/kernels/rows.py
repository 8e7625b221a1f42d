"""Sparse rows, fused: masks and pruned vectors by their entries, or as differences to rows before them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Response
from fpmc.core.sources import Discrete
from fpmc.engine import cost
from fpmc.engine.kernels import folding
from fpmc.engine.kernels.fused import Fused, FusedRun
from fpmc.engine.kernels.layout import Lanes
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.simd import LANES
from fpmc.engine.simd.sparse import DEEPEST, FIRST, FOUR, Sparse, build, work

_counted: WeakKeyDictionary[Precision | Response, dict[bool, tuple[str, int]]] = WeakKeyDictionary()
_rows: WeakKeyDictionary[Precision, tuple[bool, Sparse]] = WeakKeyDictionary()      # of q, whatever images it asks
_tails: WeakKeyDictionary[Precision, tuple[float, float]] = WeakKeyDictionary()     # see `weight_and_tail`
_columns: WeakKeyDictionary[Response, Sparse] = WeakKeyDictionary()

NOT_KEPT = np.empty((0, 0, 0), np.float32)
SMALL = 1e-3                                            # of the largest entry of a row: what is below is its tail


@dataclass(frozen=True, kw_only=True)
class SparseRows(Fused):
    """Any vectors, the cheaper the fewer entries they have."""

    kernel = "rows"
    short: bool                                         # by what rows lack, or as differences
    keeps: bool = False                                 # distances from the first pass for the second

    @property
    def centred(self) -> bool:
        """Of (z − x)² − z² = x(x − 2z), smaller where noise is strong."""
        return centred_at(self.sigma)

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        q, source = group.q, group.source
        if not isinstance(source, Discrete) or not q.diagonal or isinstance(q, (Full, Squares)):
            return
        respond, images, length = respond_of(group, reduction), len(source), len(group)
        passes = 2 if respond == "mixed" else 1
        dimension, span = math.prod(group.shape), q.channels * q.height * q.width
        slots = {"owned": dimension, "means": length * dimension, "mixed": dimension}[respond]
        cut = cut_of(source, passes, settings)
        for short in (False, True):
            counts = defaultdict(float)
            counts["fused.element"] += passes * dimension * images
            counts["fused.estimator"] += passes * length * images
            kind, count = sums(q, short)
            near = share_near(q, call.sigma, cut) if kind == "four" else 1.0
            places = read(count, length, near) * images
            counts[f"fused.{kind}"] += passes * places
            if respond == "mixed":
                for operation, each in mixing(group.r)[1].items():
                    counts[operation] += each * images
                counts["fused.element"] += dimension * images
            elif respond == "means":
                counts["fused.element"] += slots * images
            why = f"{q.entries / length:.1f} of {span} entries per row"
            why += ", shared by the channels" if q.channels == 1 and group.shape[0] > 1 else ""
            why += f", {sums(q, True)[1] / length:.1f} as differences" if short else ""
            why += fours(q, near) if kind == "four" else ""
            why += "; two passes, since responses mix normalised posteriors" if passes == 2 else ""
            offer = cls(
                respond=respond, sigma=call.sigma, estimators=length, images=images, counts=dict(counts),
                **cls.room(groups, call, settings, slots), why=why,
                error=rounding(group, call) if short else 0.0, cut=cut, short=short,
            )
            yield offer
            size = 4 * -(-length // FOUR) * FOUR * (images + LANES)            # bytes of a noisy image's distances
            at_once = min(call.batch, int(settings.memory - offer.memory) // size)
            if passes == 2 and at_once > 0 and reduction.wants == "answers":   # attribution asks all of a batch at once
                counts[f"fused.{kind}"] -= places
                counts["fused.element"] += length * images
                yield replace(
                    offer, counts=dict(counts), keeps=True, batch=at_once, memory=offer.memory + at_once * size,
                    why=f"{why}; distances are kept in between, {at_once} noisy images at a time",
                )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return RowsRun(self, groups, z, reduction, total)


def centred_at(sigma: float) -> bool:
    """x(x − 2z) is smaller than (z − x)²."""
    return sigma + 1 < sigma**2 + 0.5


def nats(weight: float, sigma: float) -> float:
    """The size of a logit of a row of so much weight, for z within a few σ of [−1, 1]."""
    return weight * (sigma + 1 if centred_at(sigma) else sigma**2 + 0.5) / (2 * sigma**2)


def rounding(group: Group, call: Call) -> float:
    """Nats that rows put together from others may be off by."""
    return torch.finfo(call.dtype).eps * math.sqrt(DEEPEST) * nats(group.q.entries / len(group), call.sigma)


def leaves(sigma: float, cut: float) -> bool:
    """Some of the places of a row can show that a block of images is too far to count."""
    return not centred_at(sigma) and math.isfinite(cut)


def share_near(q: Precision, sigma: float, cut: float) -> float:
    """About how many blocks of images are near enough to count: fitted to discs on Fashion-MNIST, σ ≤ 0.6."""
    if not leaves(sigma, cut):
        return 1.0
    return (2 * cut / max(2 * cut, nats(weight_and_tail(q)[0], sigma))) ** (3 / 8)


def weight_and_tail(q: Precision) -> tuple[float, float]:
    """Σ q of a row in the mean, and of its entries the share that is below `SMALL` of the largest."""
    if q not in _tails:
        dense = q.dense().flatten(1)
        small = (dense > 0) & (dense < SMALL * dense.amax(1, keepdim=True))
        _tails[q] = dense.sum().item() / len(q), small.sum().item() / max(1, q.entries)
    return _tails[q]


def read(places: float, rows: int, near: float) -> float:
    """Places that are read, of all blocks those of the ones that are near, of the others about the first two looks."""
    return near * places + (1 - near) * min(places, 2 * FIRST * rows / FOUR)


def fours(q: Precision, near: float) -> str:
    """What rows of any values cost, and what would make them cheaper."""
    text, tail = ", four rows at a time", weight_and_tail(q)[1]
    text += f", about {1 - near:.0%} of the blocks of images left after some of them" if near < 1 else ""
    text += f"; {tail:.0%} of the entries are below {SMALL:g} of the largest, and 0 costs nothing" if tail > 0.1 else ""
    return text


def sums(part: Precision | Response, short: bool) -> tuple[str, int]:
    """What sparse sums take (`sparse.work`), of q by estimator, of r by output value; kept with what they belong to."""
    counts = _counted.setdefault(part, {})
    if short not in counts:
        matrix = (part.values if isinstance(part, Precisions) else part.dense()).flatten(1)
        counts[short] = work(matrix.T if isinstance(part, Response) else matrix, short)
    return counts[short]


def mixing(r: Response) -> tuple[bool | None, dict[str, float]]:
    """The cheapest way to mix posteriors, by mirrors with the diagonal or without, or None: row by row; its counts."""
    kind, count = sums(r, True)
    found: list[tuple[bool | None, dict[str, float]]] = [(None, {f"fused.{kind}": float(count)})]
    for diagonal, part in folding.ways(r, 0.0) if kind == "four" and folding.pixelwise(r) else ():
        found.append((diagonal, {"fused.four": float(part.places), "fused.fold": float(len(r))}))
    return min(found, key=lambda way: cost.seconds(way[1]))


class RowsRun(FusedRun):
    """Sparse rows at work."""

    def __init__(self, offer: Fused, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> None:
        super().__init__(offer, groups, z, reduction, total)
        self.distances: dict[int, np.ndarray] = {}      # by where a stretch begins

    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        assert isinstance(self.offer, SparseRows)
        self.posterior, self.respond = kernels.rows_posterior, kernels.rows_respond
        q, short = self.groups[0].q, self.offer.short
        if (kept := _rows.get(q)) is None or kept[0] != short:
            _rows[q] = short, build((q.values if isinstance(q, Precisions) else q.dense()).flatten(1), short)
        span, sigma, cut = q.channels * q.height * q.width, self.offer.sigma, self.offer.cut
        return kernels.Rows(span, centred_at(sigma), leaves(sigma, cut), _rows[q][1], NOT_KEPT)

    def query_of(self, part: Lanes, first: bool) -> NamedTuple:
        """With distances of these images, which the first pass writes and the second one reads, if it comes after."""
        if not (isinstance(self.offer, SparseRows) and self.offer.keeps):
            return self.q
        place, rows = part.first + part.begin, -(-len(self.groups[0]) // FOUR) * FOUR
        if first:
            self.distances[place] = np.empty((len(self.z), len(part.stretch.blocks), rows * LANES), np.float32)
        return self.q._replace(kept=self.distances.get(place, NOT_KEPT))

    def response(self) -> Any:
        """By output value; posteriors are at most 1, so differences lose nothing."""
        r = self.groups[0].r
        diagonal, _ = mixing(r)
        if diagonal is not None:
            return folding.build(r, diagonal)
        if r not in _columns:
            _columns[r] = build(r.dense().flatten(1).T, True)
        return _columns[r]

    def width(self) -> int:
        return self.groups[0].r.channels * math.prod(self.groups[0].shape[1:])

