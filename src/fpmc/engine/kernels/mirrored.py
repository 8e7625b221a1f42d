"""Soft rows that mirrors leave as they are, fused: sums over mirrored pixels, a quarter of the work.

Discs, bumps, whatever falls off with the distance from a pixel is the same for mirrored pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fpmc.core.precision import Full, Precision, Squares
from fpmc.core.response import Response
from fpmc.core.sources import Discrete
from fpmc.engine import cost
from fpmc.engine.kernels import rows
from fpmc.engine.kernels.fused import Fused
from fpmc.engine.kernels.offer import Members, Offer, Run, cut_of, respond_of
from fpmc.engine.kernels.rows import RowsRun, centred_at, nats
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.simd.sparse import FOUR

if TYPE_CHECKING:
    from fpmc.engine.simd.mirrors import Mirrors

LOST = 1.0                                              # rms of what logits are off by, in ε of a typical one


class Split(NamedTuple):
    """What mirrors make of a matrix."""

    off: float                                          # Σ |q − its mean over all mirrors|, of the worst row
    weight: float                                       # Σ q of the heaviest row
    places: int                                         # of four rows each


_splits: WeakKeyDictionary[Precision | Response, dict[bool, Split]] = WeakKeyDictionary()
_built: WeakKeyDictionary[Precision | Response, Mirrors] = WeakKeyDictionary()


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
        if rows.sums(q, False)[0] != "four":            # few entries, or masks, which are differences of each other
            return
        respond, images, length = respond_of(group, reduction), len(source), len(group)
        passes, threads = 2 if respond == "mixed" else 1, settings.threads or torch.get_num_threads()
        dimension, cut = math.prod(group.shape), cut_of(source, passes, settings)
        slots = {"owned": dimension, "means": length * dimension, "mixed": dimension}[respond]
        for diagonal in ways(q):
            part = split(q, diagonal)
            moved = part.off * call.reach**2 / (2 * call.sigma**2)
            if moved > (0.0 if settings.exact else settings.nats):
                continue
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
                memory=cls.room(groups, call.batch, threads, slots), why=why, threads=threads,
                error=moved + lost, cut=cut, diagonal=diagonal,
            )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Mirrored(self, groups, z, reduction, total)


def pixelwise(part: Precision | Response) -> bool:
    """One vector for each pixel, shared by the channels."""
    return getattr(part, "diagonal", True) and part.channels == 1 and len(part) == math.prod(size_of(part))


def size_of(part: Precision | Response) -> tuple[int, int]:
    """Height and width of the images."""
    height, width = part.total().shape[1:] if isinstance(part, Response) else (part.height, part.width)
    return height, width


def ways(part: Precision | Response) -> tuple[bool, ...]:
    """Without the diagonal; with it where the image is square."""
    height, width = size_of(part)
    return (False, True) if height == width else (False,)


def matrix_of(part: Precision | Response) -> Tensor:
    """float64: of q estimators by pixels, of r output values by estimators."""
    dense = part.dense(torch.float64).flatten(1)
    return dense.T if isinstance(part, Response) else dense


def split(part: Precision | Response, diagonal: bool) -> Split:
    """Kept with what it belongs to."""
    from fpmc.engine.simd import mirrors

    known = _splits.setdefault(part, {})
    if diagonal not in known:
        matrix, how = matrix_of(part), (*size_of(part), diagonal)
        mean = mirrors.mirrored(matrix, *how)
        off = (matrix - mean).abs().sum(1).max().item()
        known[diagonal] = Split(off, mean.sum(1).max().item(), mirrors.places(mean, *how))
    return known[diagonal]


def mixing(r: Response) -> tuple[bool | None, dict[str, float]]:
    """The cheapest way to mix posteriors, by mirrors with the diagonal or without, or None: row by row; its counts."""
    kind, count = rows.sums(r, True)
    found: list[tuple[bool | None, dict[str, float]]] = [(None, {f"fused.{kind}": float(count)})]
    for diagonal in ways(r) if kind == "four" and pixelwise(r) else ():
        if (part := split(r, diagonal)).off == 0:
            found.append((diagonal, {"fused.four": float(part.places), "fused.fold": float(len(r))}))
    return min(found, key=lambda way: cost.seconds(way[1]))


def build(part: Precision | Response, diagonal: bool) -> Mirrors:
    """The last one made is kept with what it belongs to."""
    from fpmc.engine.simd import mirrors

    if part not in _built or _built[part].diagonal != diagonal:
        how = *size_of(part), diagonal
        _built[part] = mirrors.build(mirrors.mirrored(matrix_of(part), *how), *how)
    return _built[part]


class _Mirrored(RowsRun):
    def query(self) -> NamedTuple:
        from fpmc.engine.simd import kernels

        assert isinstance(self.offer, Mirrored)
        self.posterior, self.respond = kernels.rows_posterior, kernels.rows_respond
        q = self.groups[0].q
        return kernels.Rows(len(q), centred_at(self.offer.sigma), False, build(q, self.offer.diagonal))

    def response(self) -> Any:
        r = self.groups[0].r
        diagonal, _ = mixing(r)
        return super().response() if diagonal is None else build(r, diagonal)

    def width(self) -> int:
        return self.groups[0].r.channels * len(self.groups[0].q)
