"""Soft rows that mirrors leave as they are, fused: sums over mirrored pixels, a quarter of the work.

Discs, bumps, whatever falls off with the distance from a pixel is the same for mirrored pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpmc.core.precision import Full, Squares
from fpmc.core.sources import Discrete
from fpmc.engine.kernels.folding import build, pixelwise, ways
from fpmc.engine.kernels.fused import Fused
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.kernels.rows import NOT_KEPT, RowsRun, centred_at, mixing, nats, sums
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.simd.sparse import FOUR

LOST = 1.0                                              # rms of what logits are off by, in ε of a typical one


@dataclass(frozen=True, kw_only=True)
class Mirrored(Fused):
    """One vector for each pixel, the same for mirrored pixels."""

    kernel = "mirrors"
    diagonal: bool                                      # the diagonal is a mirror, too

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        q, source = group.q, group.source
        if not isinstance(source, Discrete) or isinstance(q, (Full, Squares)) or not pixelwise(q):
            return
        if sums(q, False)[0] != "four":                 # few entries, or masks, which are differences of each other
            return
        respond, images, length = respond_of(group, reduction), len(source), len(group)
        passes = 2 if respond == "mixed" else 1
        dimension, cut = math.prod(group.shape), cut_of(source, passes, settings)
        slots = {"owned": dimension, "means": length * dimension, "mixed": dimension}[respond]
        moves = call.reach**2 / (2 * call.sigma**2)     # a logit, for what q is off by
        for diagonal, part in ways(q, 0.0 if settings.exact else settings.nats / moves):
            counts = {
                "fused.element": float(passes * dimension * images),
                "fused.fold": float(passes * length * images),
                "fused.estimator": float(passes * length * images),
                "fused.four": float(passes * part.places * images),
            }
            if respond == "mixed":
                for kind, count in mixing(group.r)[1].items():
                    counts[kind] = counts.get(kind, 0.0) + images * count
                counts["fused.element"] += float(dimension * images)
            elif respond == "means":
                counts["fused.element"] += float(slots * images)
            why = f"{q.entries / length:.1f} of {length} entries per row, the same for mirrored pixels"
            why += ", along the diagonal, too" if diagonal else ""
            why += f": {FOUR * part.places / length:.1f} as sums over them"
            why += "; two passes, since responses mix normalised posteriors" if passes == 2 else ""
            lost = LOST * torch.finfo(call.dtype).eps * nats(group.shape[0] * part.weight, call.sigma)
            yield cls(
                respond=respond, sigma=call.sigma, estimators=length, images=images, counts=counts,
                **cls.room(groups, call, settings, slots), why=why,
                error=part.off * moves + lost, cut=cut, diagonal=diagonal,
            )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Mirrored(self, groups, z, reduction, total)


class _Mirrored(RowsRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        assert isinstance(self.offer, Mirrored)
        self.posterior, self.respond = kernels.rows_posterior, kernels.rows_respond
        q = self.groups[0].q
        return kernels.Rows(len(q), centred_at(self.offer.sigma), False, build(q, self.offer.diagonal), NOT_KEPT)
