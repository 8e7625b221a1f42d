"""Sparse rows, fused: masks and pruned vectors by their entries, or as differences to rows before them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Response
from fpmc.core.sources import Discrete
from fpmc.engine.kernels.fused import Fused, FusedRun
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.simd.sparse import DEEPEST, Sparse, build, work

_counted: WeakKeyDictionary[Precision | Response, dict[bool, tuple[str, int]]] = WeakKeyDictionary()
_rows: WeakKeyDictionary[Precision, tuple[bool, Sparse]] = WeakKeyDictionary()      # of q, whatever images it asks
_columns: WeakKeyDictionary[Response, Sparse] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class SparseRows(Fused):
    """Any vectors, the cheaper the fewer entries they have."""

    kernel = "rows"
    short: bool                                         # by what rows lack, or as differences
    centred: bool                                       # of (z − x)² − z² = x(x − 2z), smaller where noise is strong

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
        centred = call.sigma + 1 < call.sigma**2 + 0.5  # the sizes of x(x − 2z) and of (z − x)²
        for short in (False, True):
            counts = defaultdict(float)
            counts["fused.element"] += passes * dimension * images
            counts["fused.estimator"] += passes * length * images
            kind, count = sums(q, short)
            counts[f"fused.{kind}"] += count * passes * images
            if respond == "mixed":
                kind, count = sums(group.r, True)
                counts[f"fused.{kind}"] += count * images
                counts["fused.element"] += dimension * images
            elif respond == "means":
                counts["fused.element"] += slots * images
            why = f"{q.entries / length:.1f} of {span} entries per row"
            why += ", shared by the channels" if q.channels == 1 and group.shape[0] > 1 else ""
            why += f", {sums(q, True)[1] / length:.1f} as differences" if short else ""
            why += ", four rows at a time" if sums(q, short)[0] == "four" else ""
            why += "; two passes, since responses mix normalised posteriors" if passes == 2 else ""
            yield cls(
                respond=respond, sigma=call.sigma, estimators=length, images=images, counts=dict(counts),
                **cls.room(groups, call, settings, slots), why=why,
                error=rounding(group, call, centred) if short else 0.0, cut=cut_of(source, passes, settings),
                short=short, centred=centred,
            )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Rows(self, groups, z, reduction, total)


def rounding(group: Group, call: Call, centred: bool) -> float:
    """Nats that rows put together from others may be off by, for z within a few σ of [−1, 1]."""
    size = call.sigma + 1 if centred else call.sigma**2 + 0.5
    logit = group.q.entries / len(group) * size / (2 * call.sigma**2)
    return torch.finfo(call.dtype).eps * math.sqrt(DEEPEST) * logit


def sums(part: Precision | Response, short: bool) -> tuple[str, int]:
    """What sparse sums take (`sparse.work`), of q by estimator, of r by output value; kept with what they belong to."""
    counts = _counted.setdefault(part, {})
    if short not in counts:
        matrix = (part.values if isinstance(part, Precisions) else part.dense()).flatten(1)
        counts[short] = work(matrix.T if isinstance(part, Response) else matrix, short)
    return counts[short]


class _Rows(FusedRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        assert isinstance(self.offer, SparseRows)
        self.posterior, self.respond = kernels.rows_posterior, kernels.rows_respond
        q, short = self.groups[0].q, self.offer.short
        if (kept := _rows.get(q)) is None or kept[0] != short:
            _rows[q] = short, build((q.values if isinstance(q, Precisions) else q.dense()).flatten(1), short)
        return kernels.Rows(q.channels * q.height * q.width, self.offer.centred, _rows[q][1])

    def response(self) -> Sparse:
        """By output value; posteriors are at most 1, so differences lose nothing."""
        r = self.groups[0].r
        if r not in _columns:
            _columns[r] = build(r.dense().flatten(1).T, True)
        return _columns[r]

    def width(self) -> int:
        return self.response().rows
